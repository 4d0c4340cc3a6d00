-- Messages that are to be written later. The transaction that writes one to the log removes its row. The
-- id, which is that of the message, keeps both from being there twice. A row that was cancelled stays, so
-- that scheduling the same again does not bring it back.

CREATE TABLE IF NOT EXISTS reservation.scheduled (
  id uuid NOT NULL PRIMARY KEY,
  number bigint GENERATED ALWAYS AS IDENTITY,
  -- A consumer computes with it, and Python holds no later year.
  due_at timestamptz NOT NULL CHECK (due_at >= '1970-01-01 00:00:00+00' AND due_at < '9999-01-01 00:00:00+00'),
  stream_name text NOT NULL,
  type text NOT NULL,
  data jsonb,
  metadata jsonb,
  scheduled_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  cancelled_at timestamptz,
  attempts integer NOT NULL DEFAULT 0,
  attempt_at timestamptz,  -- the next attempt to write a message that was refused
  error text  -- why it was refused
);

CREATE INDEX IF NOT EXISTS scheduled_due ON reservation.scheduled (due_at, number)
WHERE cancelled_at IS NULL AND attempt_at IS NULL;

CREATE INDEX IF NOT EXISTS scheduled_refused ON reservation.scheduled (attempt_at, number)
WHERE cancelled_at IS NULL AND attempt_at IS NOT NULL;
