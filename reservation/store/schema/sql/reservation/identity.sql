-- Telling one store from another, and a log from the one that a position was taken in.

CREATE OR REPLACE FUNCTION reservation.store_id() RETURNS uuid
LANGUAGE sql STABLE
RETURN (SELECT i.id FROM reservation.store_identity i);

-- The id of the message of a category at a global position; NULL if there is none.
CREATE OR REPLACE FUNCTION reservation.message_at(category text, "position" bigint) RETURNS uuid
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
  SELECT m.id FROM message_store.messages m
  WHERE m.global_position = message_at.position
    AND message_store.category(m.stream_name) = message_at.category
$$;

-- Whether a position was taken in another log: the message that it names is gone. No prune removes
-- that one. A position that names no message is foreign if it is beyond all that was ever written
-- here; the last messages may have been pruned, so the sequence counts as well as the log. Who may
-- not read the sequence cannot tell.
CREATE OR REPLACE FUNCTION reservation.is_foreign("position" bigint, message_id uuid) RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
  SELECT CASE
    WHEN is_foreign.position <= 0 THEN false
    WHEN is_foreign.message_id IS NOT NULL THEN NOT EXISTS (
      SELECT FROM message_store.messages m
      WHERE m.global_position = is_foreign.position AND m.id = is_foreign.message_id)
    WHEN is_foreign.position <= coalesce(
      (SELECT max(m.global_position) FROM message_store.messages m), 0) THEN false
    ELSE (
      SELECT CASE
        WHEN s.oid IS NULL THEN true
        WHEN has_sequence_privilege(s.oid, 'USAGE, SELECT')
          THEN is_foreign.position > coalesce(pg_sequence_last_value(s.oid), 0)
        ELSE false
      END
      FROM (
        SELECT pg_get_serial_sequence('message_store.messages', 'global_position')::regclass AS oid
      ) AS s)
  END
$$;

-- The same of what a group carries from the partitions that it had before, as far as any message may
-- still be passed over because of it.
CREATE OR REPLACE FUNCTION reservation.has_foreign_former_positions(consumer text, category text)
RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
  SELECT EXISTS (
    SELECT FROM reservation.groups g, unnest(g.former_positions, g.former_position_ids) AS c("position", message_id)
    WHERE (g.consumer, g.category) = (has_foreign_former_positions.consumer, has_foreign_former_positions.category)
      AND c.position > (
        SELECT min(p.position) FROM reservation.positions p
        WHERE (p.consumer, p.category) = (g.consumer, g.category))
      AND reservation.is_foreign(c.position, c.message_id))
$$;

-- The global positions of the messages of a category that may not be removed, because a consumer
-- stands there.
CREATE OR REPLACE FUNCTION reservation.stood_at(category text) RETURNS SETOF bigint
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
  SELECT p.position FROM reservation.positions p WHERE p.category = stood_at.category
  UNION
  SELECT c.position
  FROM reservation.groups g, unnest(g.former_positions) AS c("position")
  WHERE g.category = stood_at.category
$$;

-- The position up to which the consumers of a category have handled it: all of them, or one by name.
-- 0 if one of their positions is of another log, NULL if there are none.
CREATE OR REPLACE FUNCTION reservation.dealt_with(category text, consumer text DEFAULT NULL)
RETURNS bigint
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
  SELECT min(CASE WHEN reservation.is_foreign(p.position, p.message_id) THEN 0 ELSE p.position END)
  FROM reservation.positions p
  WHERE p.category = dealt_with.category
    AND (dealt_with.consumer IS NULL OR p.consumer = dealt_with.consumer)
$$;

-- A position that is moved by hand, without the id of the message there, names none.
CREATE OR REPLACE FUNCTION reservation.forget_message() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  NEW.message_id := NULL;
  RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER forget_message
BEFORE UPDATE ON reservation.moves
FOR EACH ROW
WHEN (NEW.position <> OLD.position AND NEW.message_id = OLD.message_id)
EXECUTE FUNCTION reservation.forget_message();
