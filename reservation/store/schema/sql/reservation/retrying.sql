-- Only a letter that is dead waits for an attempt. Whoever changes its state, of whichever version and
-- with whichever rights, ends the waiting.
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
-- They go with the letter's end, whoever brings that about. They also go when a process of a version
-- that does not know them, or one that is not to keep them, notes another failure.
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
