-- Writing in a transaction of its own: what write_message, write_messages and write_each do, and the
-- commit, see flushing.sql. To be called outside a transaction. Whoever calls one and is refused calls
-- flush_with_commit before passing the refusal on.
--
-- A procedure that commits can neither set its search_path nor have the rights of its owner, so every
-- name is in full, those of operators too. The settings are as they were once the first transaction has
-- ended.

CREATE OR REPLACE PROCEDURE reservation.commit_message(
  id uuid,
  stream_name text,
  type text,
  data jsonb,
  metadata jsonb,
  expected_version bigint,
  INOUT "position" bigint DEFAULT NULL,
  INOUT global_position bigint DEFAULT NULL
)
LANGUAGE plpgsql
AS $$
DECLARE
  written pg_catalog.record;
  commits_as pg_catalog.text := pg_catalog.current_setting('synchronous_commit');
BEGIN
  PERFORM pg_catalog.set_config('reservation.caller_flushes', 'commits', true);
  written := reservation.write_message(id, stream_name, type, data, metadata, expected_version);
  "position" := written.position;
  global_position := written.global_position;
  IF pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.<>) commits_as THEN
    COMMIT;
    PERFORM reservation.log_record();
  END IF;
END
$$;

CREATE OR REPLACE PROCEDURE reservation.commit_messages(
  ids uuid[],
  stream_names text[],
  types text[],
  data jsonb[],
  metadata jsonb[],
  expected_versions bigint[],
  INOUT positions bigint[] DEFAULT NULL,
  INOUT global_positions bigint[] DEFAULT NULL
)
LANGUAGE plpgsql
AS $$
DECLARE
  written pg_catalog.record;
  commits_as pg_catalog.text := pg_catalog.current_setting('synchronous_commit');
BEGIN
  PERFORM pg_catalog.set_config('reservation.caller_flushes', 'commits', true);
  written := reservation.write_messages(
    ids, stream_names, types, data, metadata, expected_versions);
  positions := written.positions;
  global_positions := written.global_positions;
  IF pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.<>) commits_as THEN
    COMMIT;
    PERFORM reservation.log_record();
  END IF;
END
$$;

CREATE OR REPLACE PROCEDURE reservation.commit_each(
  ids uuid[],
  stream_names text[],
  types text[],
  data jsonb[],
  metadata jsonb[],
  expected_versions bigint[],
  INOUT positions bigint[] DEFAULT NULL,
  INOUT global_positions bigint[] DEFAULT NULL
)
LANGUAGE plpgsql
AS $$
DECLARE
  written pg_catalog.record;
  commits_as pg_catalog.text := pg_catalog.current_setting('synchronous_commit');
BEGIN
  PERFORM pg_catalog.set_config('reservation.caller_flushes', 'commits', true);
  written := reservation.write_each(
    ids, stream_names, types, data, metadata, expected_versions);
  positions := written.positions;
  global_positions := written.global_positions;
  IF pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.<>) commits_as THEN
    COMMIT;
    PERFORM reservation.log_record();
  END IF;
END
$$;
