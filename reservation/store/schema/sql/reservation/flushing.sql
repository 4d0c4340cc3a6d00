-- Early lock release. A write that waited for its category's lock, in a transaction of its own, commits
-- without waiting for the flush of the log of changes (WAL), so that the lock goes at once. A record in a
-- transaction that follows is then flushed before the writer gets its answer, and with it all that was
-- committed before. (Source: early lock release, in DeWitt et al., Implementation Techniques for Main
-- Memory Database Systems, 1984.)
--
-- So others may see a message that is not flushed yet, and that a crash of the server may take away
-- again. What they commit comes later in the log of changes, and is not there without the message. What
-- they answer from it waits for a flush: functions that write nothing call flush_with_commit, those
-- that refuse flush_now. All have the rights of the owner, so that it depends on those alone.

-- Whether commits of this server may be flushed after their locks are released. Where a standby is waited
-- for, commits are as they always were: what is seen has reached it.
CREATE OR REPLACE FUNCTION reservation.may_flush_later() RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN NOT pg_is_in_recovery()
    AND current_setting('synchronous_standby_names') = ''
    AND has_function_privilege('pg_current_wal_flush_lsn()', 'EXECUTE')
    AND has_function_privilege('pg_current_wal_insert_lsn()', 'EXECUTE')
    AND has_function_privilege(
          CASE WHEN current_setting('server_version_num')::integer < 170000
               THEN 'pg_logical_emit_message(boolean, text, text)'
               ELSE 'pg_logical_emit_message(boolean, text, text, boolean)' END, 'EXECUTE');
END
$$;

-- Whether something that is committed, and so can be seen, may not be flushed yet. A session with
-- synchronous_commit off does not ask.
CREATE OR REPLACE FUNCTION reservation.may_be_unflushed() RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF pg_is_in_recovery() OR current_setting('synchronous_commit') = 'off' THEN
    RETURN false;
  END IF;
  RETURN pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn() AND reservation.may_flush_later();
END
$$;

-- Has the commit of this transaction flush, although it may write nothing. Of a transaction that has only
-- been given a number PostgreSQL flushes nothing.
CREATE OR REPLACE FUNCTION reservation.log_record() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  PERFORM pg_logical_emit_message(true, 'reservation', '');
END
$$;

-- Has the commit of this transaction flush what it may have seen, unless all is flushed already.
CREATE OR REPLACE FUNCTION reservation.flush_with_commit() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF reservation.may_be_unflushed() THEN
    PERFORM pg_logical_emit_message(true, 'reservation', '');
  END IF;
END
$$;

-- Flushes what this transaction may have seen before it is refused, and so will not commit. Not where the
-- caller flushes before it passes a refusal on, or passes none on: the setting reservation.caller_flushes
-- is then 'refusals', or 'commits' if it flushes its commits too. Before version 17 PostgreSQL flushes within
-- a transaction only what fills pages, in its own time: wal_writer_delay.
CREATE OR REPLACE FUNCTION reservation.flush_now() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  seen pg_lsn;
BEGIN
  IF current_setting('reservation.caller_flushes', true) <> '' OR NOT reservation.may_be_unflushed() THEN
    RETURN;
  END IF;
  IF current_setting('server_version_num')::integer >= 170000 THEN
    PERFORM pg_logical_emit_message(false, 'reservation', '', true);
    RETURN;
  END IF;
  seen := pg_current_wal_insert_lsn();
  PERFORM pg_logical_emit_message(
    false, 'reservation', repeat(' ', 2 * current_setting('wal_block_size')::integer));
  WHILE pg_current_wal_flush_lsn() < seen LOOP
    PERFORM pg_sleep(0.001);
  END LOOP;
END
$$;

-- Takes the lock of a category, given as message_store.hash_64 of it. Where the caller flushes its commits,
-- that of a writer that had to wait releases the locks without waiting for the flush, because others may
-- be waiting too. So do the writes of its session in the second after that: whoever finds the lock free by
-- chance, and holds it through a flush, makes all others wait.
CREATE OR REPLACE FUNCTION reservation.lock_category(hash bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  had_to_wait boolean := NOT pg_try_advisory_xact_lock(hash);
BEGIN
  IF had_to_wait THEN
    PERFORM pg_advisory_xact_lock(hash);
  END IF;
  IF current_setting('reservation.caller_flushes', true) IS DISTINCT FROM 'commits'
     OR current_setting('synchronous_commit') <> 'on' THEN
    RETURN;
  END IF;
  IF had_to_wait THEN
    PERFORM set_config(
      'reservation.early_until', extract(epoch FROM clock_timestamp() + interval '1 s')::text, false);
  END IF;
  IF extract(epoch FROM clock_timestamp())
       < nullif(current_setting('reservation.early_until', true), '')::numeric
     AND reservation.may_flush_later() THEN
    PERFORM set_config('synchronous_commit', 'off', true);
  END IF;
END
$$;
