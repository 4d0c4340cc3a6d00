-- A dead letter that waits for its next attempt: it is dead, so that a process of a version that knows
-- no retries leaves it alone and parks the later messages of its entity behind it.
-- `earlier_attempts` is how many of its attempts were made before it began to wait.
ALTER TABLE reservation.dead_letters ADD COLUMN IF NOT EXISTS next_attempt_at timestamptz;

ALTER TABLE reservation.dead_letters ADD COLUMN IF NOT EXISTS earlier_attempts integer NOT NULL DEFAULT 0;

CREATE INDEX IF NOT EXISTS dead_letters_waiting
ON reservation.dead_letters (consumer, category, next_attempt_at)
WHERE state = 'dead' AND next_attempt_at IS NOT NULL;
