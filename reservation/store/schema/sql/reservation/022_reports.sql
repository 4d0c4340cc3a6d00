-- The reports of reconciliations that were kept. Auditors store them through reservation.store_report, and
-- nobody else inserts.

CREATE TABLE IF NOT EXISTS reservation.reconciliation_reports (
  number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  id uuid NOT NULL UNIQUE,  -- the caller's, so that a report that is stored again is there once
  component text NOT NULL,
  time timestamptz NOT NULL,  -- of the snapshot that was read
  stored_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  stored_by text NOT NULL,
  mode text NOT NULL CHECK (mode IN ('full', 'incremental')),
  up_to bigint NOT NULL CHECK (up_to >= 0),  -- the last global position that was read
  categories text[] NOT NULL,
  duration interval NOT NULL CHECK (duration >= '0'),  -- of the run, with the start of Spark
  in_order boolean NOT NULL,
  findings jsonb NOT NULL,  -- by kind, how many nobody has accepted
  accepted jsonb NOT NULL,  -- by kind, how many were accepted
  program text NOT NULL,  -- the version of the package that made it
  report jsonb NOT NULL  -- what `reservation reconcile --json` prints
);

CREATE INDEX IF NOT EXISTS reconciliation_reports_of
ON reservation.reconciliation_reports (component, number);

CREATE INDEX IF NOT EXISTS reconciliation_reports_stored_at
ON reservation.reconciliation_reports (stored_at);

-- What people have done with dead letters, and why. Rows are only added. `request` is the same for all
-- letters that were changed at once, and is the caller's: a request that comes twice is known again.
CREATE TABLE IF NOT EXISTS reservation.letter_decisions (
  number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  consumer text NOT NULL,
  category text NOT NULL,
  global_position bigint NOT NULL,
  message_id uuid NOT NULL,
  decision text NOT NULL CHECK (decision IN ('retry', 'correct', 'discard')),
  former_state text NOT NULL,
  reason text CHECK (btrim(reason) <> ''),
  on_behalf_of text CHECK (btrim(on_behalf_of) <> ''),  -- whom the caller names as the one who decided
  request uuid NOT NULL,
  decided_by text NOT NULL DEFAULT session_user,
  decided_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX IF NOT EXISTS letter_decisions_of
ON reservation.letter_decisions (consumer, category, global_position, number);

CREATE INDEX IF NOT EXISTS letter_decisions_of_request ON reservation.letter_decisions (request);

ALTER TABLE reservation.finding_decisions
ADD COLUMN IF NOT EXISTS on_behalf_of text CHECK (btrim(on_behalf_of) <> '');

-- Whoever looks through all letters reads them in the order of the log.
CREATE INDEX IF NOT EXISTS dead_letters_in_order
ON reservation.dead_letters (global_position, consumer, category);
