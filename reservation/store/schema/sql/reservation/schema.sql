-- What the framework adds to a message store, in a schema of its own that can be taken away again.

CREATE SCHEMA reservation;

CREATE TABLE reservation.versions (
  version integer NOT NULL PRIMARY KEY,
  installed_at timestamptz NOT NULL DEFAULT now()
);
