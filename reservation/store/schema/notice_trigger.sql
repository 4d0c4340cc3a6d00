-- name: given
-- Whether the trigger is there and fires.
SELECT EXISTS (
  SELECT FROM pg_trigger
  WHERE tgrelid = to_regclass('message_store.messages') AND tgname = 'reservation_notice'
    AND tgfoid = to_regprocedure('reservation.give_notice()') AND tgenabled IN ('O', 'A'))

-- name: on
CREATE OR REPLACE TRIGGER reservation_notice
AFTER INSERT ON message_store.messages
REFERENCING NEW TABLE AS written
FOR EACH STATEMENT EXECUTE FUNCTION reservation.give_notice()

-- name: off
DROP TRIGGER IF EXISTS reservation_notice ON message_store.messages

-- name: may_switch
SELECT has_table_privilege('message_store.messages', 'TRIGGER')
