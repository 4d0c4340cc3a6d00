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
      AND l.state IN ('dead', 'parked', 'retry') AND l.entity IS NOT NULL
    ORDER BY l.entity, l.global_position
    LIMIT 1) IS NOT NULL;
END
$$;

-- Where letters of a consumer are that are parked with nothing open before them: of each entity the first open
-- letter is looked at, in the order of their index.
CREATE OR REPLACE FUNCTION reservation.stranded_letters(consumer text, category text) RETURNS SETOF bigint
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  SELECT first.global_position
  FROM (
    SELECT DISTINCT ON (l.entity) l.global_position, l.state
    FROM reservation.dead_letters l
    WHERE l.consumer = stranded_letters.consumer AND l.category = stranded_letters.category
      AND l.state IN ('dead', 'parked', 'retry') AND l.entity IS NOT NULL
    ORDER BY l.entity, l.global_position
  ) AS first
  WHERE first.state = 'parked';
END
$$;

-- Only a letter that is dead waits for an attempt. Whoever changes its state, with whichever rights, ends the
-- waiting.
CREATE OR REPLACE FUNCTION reservation.end_waiting() RETURNS trigger
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  NEW.next_attempt_at := NULL;
  NEW.earlier_attempts := 0;
  RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER end_waiting
BEFORE UPDATE OF state ON reservation.dead_letters
FOR EACH ROW
WHEN (NEW.state <> 'dead' AND OLD.next_attempt_at IS NOT NULL)
EXECUTE FUNCTION reservation.end_waiting();

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
