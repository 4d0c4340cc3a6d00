-- Which messages are corrections: each holds the content with which a command is handled in the place
-- of its own. A message in a category of corrections counts only if it is here, and only
-- reservation.correct writes here. Who may insert into the log can therefore correct nothing.

CREATE TABLE IF NOT EXISTS reservation.corrections (
  correction bigint NOT NULL PRIMARY KEY,  -- the global position of the correction
  correction_id uuid NOT NULL,
  consumer text NOT NULL,
  category text NOT NULL,
  global_position bigint NOT NULL,  -- that of the command
  message_id uuid NOT NULL
);

CREATE INDEX IF NOT EXISTS corrections_of ON reservation.corrections (consumer, category, global_position);

CREATE INDEX IF NOT EXISTS corrections_of_message ON reservation.corrections (global_position, correction);

-- Of a letter that was handled, the correction that it was handled as; NULL if it had none.
ALTER TABLE reservation.dead_letters ADD COLUMN IF NOT EXISTS handled_as bigint;

-- Functions of version 11 whose arguments have changed.
DROP FUNCTION IF EXISTS
  reservation.reserve(bigint[], text[], jsonb, text[]),
  reservation.compare_initiations(bigint[], text[], jsonb);
