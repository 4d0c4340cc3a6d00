-- What the component's code raised for a dead letter: the class of the exception, and the deepest place
-- in the component's own code. Its text and its traceback are there if the consumers are started with
-- --errors full, because they may hold what the message holds.

ALTER TABLE reservation.dead_letters ADD COLUMN IF NOT EXISTS error_type text;

ALTER TABLE reservation.dead_letters ADD COLUMN IF NOT EXISTS error_place text;

ALTER TABLE reservation.dead_letters ADD COLUMN IF NOT EXISTS error_text text;

ALTER TABLE reservation.dead_letters ADD COLUMN IF NOT EXISTS error_traceback text;
