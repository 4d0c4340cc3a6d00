-- Entities as they were at a position of their streams, so that not all of a long stream has to be
-- read again. Nothing depends on a row: without it the entity is projected from its events.
-- `revision` is that of the code that made it; other code does not read it.

CREATE TABLE reservation.snapshots (
  stream_name text NOT NULL PRIMARY KEY,
  position bigint NOT NULL,
  revision text NOT NULL,
  data jsonb NOT NULL,
  updated_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 80);
