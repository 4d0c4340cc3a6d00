-- What people have decided about findings of reconciliations. Rows are only added, and the last one of a
-- finding counts. Who may insert gives the finding, the decision and the reason; the rest is the server's.

CREATE TABLE IF NOT EXISTS reservation.finding_decisions (
  number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  finding text NOT NULL CHECK (finding ~ '^[a-z-]+-[0-9]{1,19}-[0-9a-f]{8}$'),
  is_accepted boolean NOT NULL,
  reason text CHECK (btrim(reason) <> ''),
  decided_by text NOT NULL DEFAULT session_user,
  decided_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  CHECK (reason IS NOT NULL OR NOT is_accepted)
);

CREATE INDEX IF NOT EXISTS finding_decisions_of ON reservation.finding_decisions (finding, number);
