-- Whether a consumer has an open letter of a category, behind which messages of its entity wait; a step in the
-- index of the open ones.
CREATE OR REPLACE FUNCTION reservation.has_open_letter(consumer text, category text) RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN (
    SELECT true FROM reservation.dead_letters l
    WHERE (l.consumer, l.category) = (has_open_letter.consumer, has_open_letter.category)
      AND l.state IN ('waiting', 'parked', 'dead') AND l.entity IS NOT NULL
    ORDER BY l.entity, l.global_position
    LIMIT 1) IS NOT NULL;
END
$$;

-- Whether a consumer has letters of a category that will be due without anybody's doing: they wait, or are parked.
-- A step in an index for each.
CREATE OR REPLACE FUNCTION reservation.may_have_due_letters(consumer text, category text) RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN (
    SELECT true FROM reservation.dead_letters l
    WHERE (l.consumer, l.category) = (may_have_due_letters.consumer, may_have_due_letters.category)
      AND l.state = 'waiting'
    ORDER BY l.next_attempt_at
    LIMIT 1) IS NOT NULL
  OR (
    SELECT true FROM reservation.dead_letters l
    WHERE (l.consumer, l.category) = (may_have_due_letters.consumer, may_have_due_letters.category)
      AND l.state = 'parked'
    ORDER BY l.entity, l.global_position
    LIMIT 1) IS NOT NULL;
END
$$;

-- The open letters of an entity in their order, in whichever partitions they are, up to a number. The entity is a range,
-- and orders the letters too, so that only the index of the open letters by entity gives that order: by another one all
-- letters would be read for each entity.
CREATE OR REPLACE FUNCTION reservation.open_letters(consumer text, category text, entity text, at_most bigint)
RETURNS TABLE (global_position bigint, state text, stream_name text)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  SELECT l.global_position, l.state, l.stream_name
  FROM reservation.dead_letters l
  WHERE l.consumer = open_letters.consumer AND l.category = open_letters.category
    AND l.entity BETWEEN open_letters.entity AND open_letters.entity
    AND l.state IN ('waiting', 'parked', 'dead')
  ORDER BY l.entity, l.global_position
  LIMIT at_most;
END
$$;

-- The place of the first open letter of an entity; NULL without one.
CREATE OR REPLACE FUNCTION reservation.first_open_letter(consumer text, category text, entity text) RETURNS bigint
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN (
    SELECT l.global_position
    FROM reservation.dead_letters l
    WHERE l.consumer = first_open_letter.consumer AND l.category = first_open_letter.category
      AND l.entity BETWEEN first_open_letter.entity AND first_open_letter.entity
      AND l.state IN ('waiting', 'parked', 'dead')
    ORDER BY l.entity, l.global_position
    LIMIT 1);
END
$$;

-- The first open letters of entities that are parked, so that nothing is before them, in some partitions (NULL for
-- all), up to a limit. Of each entity that has parked letters two index entries are read, however many it has.
CREATE OR REPLACE FUNCTION reservation.parked_heads(
  consumer text, category text, partitions integer[], size integer, at_most bigint
) RETURNS TABLE (global_position bigint, entity text)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
  last text := '';
  head record;
  found_heads bigint := 0;
BEGIN
  WHILE found_heads < at_most LOOP
    SELECT l.entity INTO last
    FROM reservation.dead_letters l
    WHERE l.consumer = parked_heads.consumer AND l.category = parked_heads.category
      AND l.state = 'parked' AND l.entity > last
    ORDER BY l.entity, l.global_position
    LIMIT 1;
    EXIT WHEN NOT FOUND;
    SELECT l.global_position, l.state, l.stream_name INTO head
    FROM reservation.dead_letters l
    WHERE l.consumer = parked_heads.consumer AND l.category = parked_heads.category
      AND l.entity BETWEEN last AND last AND l.state IN ('waiting', 'parked', 'dead')
    ORDER BY l.entity, l.global_position
    LIMIT 1;
    IF head.state = 'parked'
        AND (partitions IS NULL OR reservation.partition_of(head.stream_name, size) = ANY (partitions)) THEN
      parked_heads.global_position := head.global_position;
      parked_heads.entity := last;
      found_heads := found_heads + 1;
      RETURN NEXT;
    END IF;
  END LOOP;
END
$$;

-- The text and the traceback of an exception are kept while somebody may have to find out what is wrong.
-- They go with the letter's end, whoever brings that about. They also go when a process that is not to keep
-- them notes another failure.
CREATE OR REPLACE FUNCTION reservation.forget_raised() RETURNS trigger
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  NEW.error_text := NULL;
  NEW.error_traceback := NULL;
  RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER forget_raised
BEFORE UPDATE OF state, digest ON reservation.dead_letters
FOR EACH ROW
WHEN (OLD.error_traceback IS NOT NULL
      AND (NEW.state IN ('handled', 'discarded')
           OR NEW.digest IS DISTINCT FROM OLD.digest
              AND NEW.error_traceback IS NOT DISTINCT FROM OLD.error_traceback))
EXECUTE FUNCTION reservation.forget_raised();
