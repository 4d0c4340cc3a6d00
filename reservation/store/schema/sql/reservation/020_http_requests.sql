-- What HTTP requests with an idempotency key were answered. The id is made of who asks and of the key, so
-- neither of them is stored. Answers may hold personal data: nobody but the owner and auditors may read
-- the table, and others reach the requests of their own role through functions.

CREATE TABLE IF NOT EXISTS reservation.http_requests (
  role text NOT NULL,  -- whose request it is; a name, so that a dump can be restored where it is missing
  id uuid NOT NULL,
  fingerprint bytea NOT NULL,  -- of method, target and content
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  -- The request, where a client was sent away before there was an answer; until there is one.
  parked jsonb,
  parked_content bytea,
  -- The answer, once there is one.
  answered_at timestamptz,
  status smallint,
  headers jsonb,
  body bytea,
  PRIMARY KEY (role, id),
  CHECK ((status IS NULL) = (headers IS NULL) AND (status IS NULL) = (body IS NULL))
) WITH (fillfactor = 80);

CREATE INDEX IF NOT EXISTS http_requests_created_at ON reservation.http_requests (created_at);
