-- A function or procedure can be called by everybody unless that is taken away. This runs after every change of
-- the functions, so it holds for those of later versions too.

REVOKE ALL ON ALL ROUTINES IN SCHEMA reservation FROM PUBLIC;

-- What a consumer or sender needs that connects as the role of Message DB's clients.

GRANT USAGE ON SCHEMA reservation TO message_store;
GRANT SELECT ON
  reservation.versions, reservation.store_identity, reservation.finding_decisions,
  reservation.letter_decisions, reservation.dead_letters, reservation.positions
TO message_store;
GRANT INSERT (
  consumer, category, global_position, message_id, decision, former_state, reason, on_behalf_of, request
) ON reservation.letter_decisions TO message_store;
GRANT SELECT, INSERT, UPDATE ON
  reservation.groups, reservation.leases, reservation.moves, reservation.members, reservation.heartbeats
TO message_store;
GRANT INSERT (
  consumer, category, global_position, message_id, stream_name, type, entity, state, reason, error, digest,
  attempts, process, next_attempt_at, error_type, error_place, error_text, error_traceback,
  key_fields, rate
), UPDATE (
  message_id, stream_name, type, entity, state, reason, error, digest, attempts, process, changed_at,
  next_attempt_at, error_type, error_place, error_text, error_traceback, key_fields, rate
) ON reservation.dead_letters TO message_store;
GRANT DELETE ON reservation.moves, reservation.members, reservation.heartbeats TO message_store;
GRANT SELECT, INSERT, UPDATE ON
  reservation.snapshots, reservation.processed_handlers, reservation.revisions,
  reservation.state_horizons, reservation.series
TO message_store;
GRANT SELECT, INSERT ON reservation.processed_messages, reservation.passes TO message_store;
GRANT SELECT, INSERT, UPDATE, DELETE ON reservation.scheduled, reservation.breakers TO message_store;
GRANT SELECT, DELETE ON reservation.pauses TO message_store;
GRANT INSERT (component, category, type, entity, reason, on_behalf_of) ON reservation.pauses TO message_store;
GRANT SELECT, INSERT, DELETE ON reservation.states, reservation.rates TO message_store;
GRANT EXECUTE ON ALL ROUTINES IN SCHEMA reservation TO message_store;
REVOKE EXECUTE ON FUNCTION
  reservation.retry_with_data(text, text, bigint, jsonb, text, text, uuid)
FROM message_store;
