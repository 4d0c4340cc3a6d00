-- The positions, each of which is a row that is updated with every batch. It is found from the newest end
-- of its key, so the versions that an old snapshot keeps are not gone through. A condition on the
-- generation has to let later ones pass, because the row may be updated while its lock is waited for.

-- Counts the updates of a row, whoever makes them. Between two generations an update writes no index.
CREATE OR REPLACE FUNCTION reservation.count_update() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  NEW.updates := OLD.updates + 1;
  NEW.generation := greatest(OLD.generation, NEW.updates / 32);
  RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER count_update
BEFORE UPDATE ON reservation.positions
FOR EACH ROW EXECUTE FUNCTION reservation.count_update();

CREATE OR REPLACE TRIGGER count_update
BEFORE UPDATE ON reservation.leases
FOR EACH ROW EXECUTE FUNCTION reservation.count_update();

-- The generation of the row of a partition; NULL if there is none.
CREATE OR REPLACE FUNCTION reservation.newest_generation(consumer text, category text, partition integer)
RETURNS bigint
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
  SELECT p.generation FROM reservation.positions p
  WHERE p.consumer = newest_generation.consumer AND p.category = newest_generation.category
    AND p.partition = newest_generation.partition
  ORDER BY p.generation DESC LIMIT 1
$$;

-- The rows of a consumer in a category: one for each partition.
CREATE OR REPLACE FUNCTION reservation.positions_of(consumer text, category text)
RETURNS SETOF reservation.positions
LANGUAGE sql STABLE ROWS 4
SET search_path = pg_catalog, pg_temp
AS $$
  WITH RECURSIVE newest(found) AS (
    (
      SELECT p FROM reservation.positions p
      WHERE p.consumer = positions_of.consumer AND p.category = positions_of.category
      ORDER BY p.partition DESC, p.generation DESC LIMIT 1
    )
    UNION ALL
    SELECT (
      SELECT p FROM reservation.positions p
      WHERE p.consumer = positions_of.consumer AND p.category = positions_of.category
        AND p.partition < (n.found).partition
      ORDER BY p.partition DESC, p.generation DESC LIMIT 1
    )
    FROM newest n
    WHERE (n.found).partition IS NOT NULL
  )
  SELECT (n.found).* FROM newest n WHERE (n.found).partition IS NOT NULL
$$;

-- A partition has one row. A second one gets the generation of the first, so that the primary key refuses
-- it.
CREATE OR REPLACE FUNCTION reservation.refuse_second_position() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  NEW.generation := coalesce(
    reservation.newest_generation(NEW.consumer, NEW.category, NEW.partition), NEW.generation);
  RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER refuse_second_position
BEFORE INSERT ON reservation.positions
FOR EACH ROW EXECUTE FUNCTION reservation.refuse_second_position();

-- Moves the positions of partitions from one message to another, each if it is still at the first and of
-- the epoch given, and in this log. False if one of them is not: the transaction is to be rolled back.
CREATE OR REPLACE FUNCTION reservation.move_positions(
  consumer text, category text, partitions integer[], epochs bigint[], before bigint, "position" bigint,
  message_id uuid, carried boolean
) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
  there uuid := coalesce(
    move_positions.message_id,
    reservation.message_at(move_positions.category, move_positions.position));
BEGIN
  FOR n IN 1 .. cardinality(partitions) LOOP
    UPDATE reservation.positions AS p
    SET position = move_positions.position, updated_at = now(), attempted = NULL, attempts = 0,
        message_id = there
    WHERE p.consumer = move_positions.consumer AND p.category = move_positions.category
      AND p.partition = partitions[n]
      AND p.generation >= (
        SELECT g.generation FROM reservation.positions g
        WHERE g.consumer = move_positions.consumer AND g.category = move_positions.category
          AND g.partition = partitions[n]
        ORDER BY g.generation DESC LIMIT 1)
      AND p.epoch = epochs[n] AND p.position = before
      AND NOT reservation.is_foreign(p.position, p.message_id)
      AND NOT (move_positions.carried
               AND reservation.carries_foreign(move_positions.consumer, move_positions.category));
    IF NOT FOUND THEN
      RETURN false;
    END IF;
  END LOOP;
  RETURN true;
END
$$;
