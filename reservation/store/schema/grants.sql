-- name: create
CREATE ROLE {role} NOLOGIN;

-- name: revoke
REVOKE ALL ON SCHEMA message_store, reservation FROM {role};
REVOKE ALL ON ALL TABLES IN SCHEMA message_store, reservation FROM {role};
REVOKE ALL ON ALL SEQUENCES IN SCHEMA message_store, reservation FROM {role};
REVOKE ALL ON ALL ROUTINES IN SCHEMA message_store, reservation FROM {role};
DELETE FROM reservation.sender_categories WHERE role = {role_name}::regrole
  OR NOT EXISTS (SELECT FROM pg_roles WHERE pg_roles.oid = role);

-- name: sender
GRANT USAGE ON SCHEMA reservation TO {role};
GRANT EXECUTE ON ROUTINE
  reservation.write_messages(uuid[], text[], text[], jsonb[], jsonb[], bigint[]),
  reservation.write_message(uuid, text, text, jsonb, jsonb, bigint),
  reservation.write_each(uuid[], text[], text[], jsonb[], jsonb[], bigint[]),
  reservation.commit_message(uuid, text, text, jsonb, jsonb, bigint, bigint, bigint),
  reservation.commit_messages(uuid[], text[], text[], jsonb[], jsonb[], bigint[], bigint[], bigint[]),
  reservation.commit_each(uuid[], text[], text[], jsonb[], jsonb[], bigint[], bigint[], bigint[]),
  reservation.log_record(),
  reservation.flush_with_commit(),
  reservation.send_messages(uuid[], text[], text[], jsonb[], jsonb[], bigint[]),
  reservation.may_insert(),
  reservation.next_revision(text),
  reservation.outcome(jsonb),
  reservation.ask(jsonb),
  reservation.may_read(),
  reservation.notice_channel(text),
  reservation.notice_lock(text, integer),
  reservation.expect_notice(text),
  reservation.expect_no_notice(text, integer),
  reservation.schedule_messages(uuid[], text[], text[], jsonb[], jsonb[], timestamptz[]),
  reservation.schedule_message(uuid, text, text, jsonb, jsonb, timestamptz, interval),
  reservation.send_scheduled(uuid[], text[], text[], jsonb[], jsonb[], timestamptz[]),
  reservation.cancel_scheduled(uuid),
  reservation.cancel_sent(uuid),
  reservation.http_request(uuid),
  reservation.begin_http_request(uuid, bytea),
  reservation.answer_http_request(uuid, integer, jsonb, bytea),
  reservation.park_http_request(uuid, jsonb, bytea),
  reservation.send_http_command(uuid, integer),
  reservation.sent_http_commands(uuid)
TO {role};
INSERT INTO reservation.sender_categories (role, category)
SELECT {role_name}::regrole, unnest(ARRAY[{categories}]);

-- name: consumer
GRANT USAGE ON SCHEMA message_store, reservation TO {role};
GRANT SELECT, INSERT ON message_store.messages TO {role};
GRANT USAGE, SELECT ON SEQUENCE message_store.messages_global_position_seq TO {role};
GRANT SELECT ON
  reservation.versions, reservation.store_identity, reservation.finding_decisions,
  reservation.letter_decisions, reservation.dead_letters, reservation.positions
TO {role};
GRANT INSERT (
  consumer, category, global_position, message_id, decision, former_state, reason, on_behalf_of, request
) ON reservation.letter_decisions TO {role};
GRANT SELECT, INSERT, UPDATE ON
  reservation.groups, reservation.leases, reservation.moves, reservation.members, reservation.heartbeats
TO {role};
GRANT INSERT (
  consumer, category, global_position, message_id, stream_name, type, entity, state, reason, error, digest,
  attempts, process, next_attempt_at, error_type, error_place, error_text, error_traceback,
  key_fields, rate
), UPDATE (
  message_id, stream_name, type, entity, state, reason, error, digest, attempts, process, changed_at,
  next_attempt_at, error_type, error_place, error_text, error_traceback, key_fields, rate
) ON reservation.dead_letters TO {role};
GRANT DELETE ON reservation.moves, reservation.members, reservation.heartbeats TO {role};
GRANT SELECT, INSERT, UPDATE ON
  reservation.snapshots, reservation.processed_handlers, reservation.revisions,
  reservation.state_horizons, reservation.series
TO {role};
GRANT SELECT, INSERT ON reservation.processed_messages, reservation.passes TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON reservation.scheduled, reservation.breakers TO {role};
GRANT SELECT, INSERT, DELETE ON reservation.states, reservation.rates TO {role};
GRANT SELECT, DELETE ON reservation.pauses TO {role};
GRANT INSERT (component, category, type, entity, reason, on_behalf_of) ON reservation.pauses TO {role};
GRANT EXECUTE ON ROUTINE
  {functions}
TO {role};

-- name: operator
GRANT USAGE ON SCHEMA message_store, reservation TO {role};
GRANT SELECT ON
  message_store.messages, reservation.versions, reservation.store_identity,
  reservation.dead_letters, reservation.finding_decisions, reservation.letter_decisions,
  reservation.scheduled, reservation.series, reservation.groups, reservation.members
TO {role};
GRANT SELECT, DELETE ON reservation.pauses TO {role};
GRANT INSERT (component, category, type, entity, reason, on_behalf_of) ON reservation.pauses TO {role};
GRANT UPDATE (cancelled_at, dead_at, attempts, attempt_at) ON reservation.scheduled TO {role};
GRANT UPDATE (state, attempts, next_attempt_at, changed_at) ON reservation.dead_letters TO {role};
GRANT INSERT (finding, is_accepted, reason, on_behalf_of) ON reservation.finding_decisions TO {role};
GRANT INSERT (
  consumer, category, global_position, message_id, decision, former_state, reason, on_behalf_of, request
) ON reservation.letter_decisions TO {role};
GRANT EXECUTE ON ROUTINE
  {functions}
TO {role};

-- name: auditor
GRANT USAGE ON SCHEMA message_store, reservation TO {role};
GRANT SELECT ON ALL TABLES IN SCHEMA message_store, reservation TO {role};
GRANT EXECUTE ON ROUTINE
  {functions}
TO {role};
