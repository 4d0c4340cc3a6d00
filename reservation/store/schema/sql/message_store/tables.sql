-- The message log: one row per message, never updated.

CREATE SCHEMA IF NOT EXISTS message_store;

CREATE TABLE message_store.messages (
  global_position bigserial NOT NULL PRIMARY KEY,
  position bigint NOT NULL,
  time timestamp without time zone NOT NULL DEFAULT (now() AT TIME ZONE 'utc'),
  stream_name text NOT NULL,
  type text NOT NULL,
  data jsonb,
  metadata jsonb,
  id uuid NOT NULL DEFAULT gen_random_uuid()
);

CREATE TYPE message_store.message AS (
  id varchar,
  stream_name varchar,
  type varchar,
  position bigint,
  global_position bigint,
  data varchar,
  metadata varchar,
  time timestamp without time zone
);
