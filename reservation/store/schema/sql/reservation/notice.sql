-- Notice of new messages, whoever writes them: a trigger that `reservation store notices on` puts on
-- the log. Who waits for a category holds a shared lock while it does. A writer that gets the same
-- lock for itself alone knows that nobody waits, and notifies nobody; NOTIFY would hold a lock of the
-- whole database while the transaction commits.
--
-- No notice is lost. Who begins to wait listens first, then takes the lock, then reads once more. It
-- gets the lock only once every writer that found nobody waiting has committed, so that it reads what
-- those wrote; and a writer that comes later does not get the lock, and notifies. A writer keeps its
-- lock to the end of its transaction, or of the savepoint that its message goes away with.
--
-- A writer never waits here. The lock of a category has parts: a writer takes the part of its
-- session, and a reader that waits takes all. Otherwise two writers would each take the other for a
-- reader that waits, even where the lock of the category lets one write at a time, because a
-- transaction that ends releases its locks one after another. There are few locks, 256 of 16 parts,
-- so that a transaction that writes to thousands of categories does not use up the server's. Those
-- that share one only cause needless notices. Keys of two numbers are distinct from those of one,
-- which the locks of categories have. The first number is the first 32 bits of the MD5 of
-- "reservation notice".

CREATE OR REPLACE FUNCTION reservation.notice_channel(category text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 'reservation.' || to_hex(message_store.hash_64(category));

CREATE OR REPLACE FUNCTION reservation.notice_lock(category text, part integer) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (hashtext(category) & 255) * 16 + (part & 15);

-- With the rights of its owner, because a role that may insert need have none in this schema. A
-- session says SET reservation.notices = off for a bulk load, or for transactions that it prepares:
-- PostgreSQL prepares none that has notified. One transaction notifies a channel once, however often
-- it is asked to.
CREATE OR REPLACE FUNCTION reservation.give_notice() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF current_setting('reservation.notices', true) IS DISTINCT FROM 'off' THEN
    PERFORM pg_notify(reservation.notice_channel(split_part(stream_name, '-', 1)), '')
    FROM written
    WHERE NOT pg_try_advisory_xact_lock(
      -882341236, reservation.notice_lock(split_part(stream_name, '-', 1), pg_backend_pid()));
  END IF;
  RETURN NULL;
END
$$;

-- Begins to wait for a category, in a session that listens already; false where a writer holds that
-- up. It is asked again then: a session that listens and does not end its statement would keep the
-- server's queue of notifications from being cleared.
CREATE OR REPLACE FUNCTION reservation.expect_notice(category text) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10ms'
AS $$
DECLARE
  taken integer := 0;
BEGIN
  WHILE taken < 16 LOOP
    PERFORM pg_advisory_lock_shared(-882341236, reservation.notice_lock(category, taken));
    taken := taken + 1;
  END LOOP;
  RETURN true;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM reservation.expect_no_notice(category, taken);
    RETURN false;
END
$$;

-- Ends the wait, so that writers need notify nobody.
CREATE OR REPLACE FUNCTION reservation.expect_no_notice(
  category text, parts integer DEFAULT 16
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  PERFORM pg_advisory_unlock_shared(-882341236, reservation.notice_lock(category, part))
  FROM generate_series(0, parts - 1) AS part;
END
$$;
