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
