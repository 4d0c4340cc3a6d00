-- The processes that read a category for a consumer are the members of a group, and share its partitions. A
-- member renews its lease at intervals; what it holds is free for the others once it has not done so for
-- the time of the lease, or its session has ended. Who takes a partition adds one to its epoch, and a batch
-- commits only with the newest: a member that was taken for dead does no harm.
--
-- A process reads several categories of a consumer, with a member in the group of each. Its load is what all
-- of these hold. A free partition goes to the process with the least load of those that read its category.
-- One gives partitions back while another that may take them has at least two fewer.
--
-- What is written here is not waited for to be on the disk. A commit that counts on it comes later,
-- and is not on the disk before it either. That is a setting of the transaction: one of the function
-- would be over by the time of the commit.

-- Lets a member live for so long from now; false if it is no member.
CREATE OR REPLACE FUNCTION reservation.renew_lease(member bigint, lease interval) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
  newest bigint;
BEGIN
  PERFORM FROM reservation.members m WHERE m.member = renew_lease.member FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    RETURN false;
  END IF;

  DELETE FROM reservation.heartbeats h
  WHERE h.member = renew_lease.member
    AND h.n = (
      SELECT o.n FROM reservation.heartbeats o
      WHERE o.member = renew_lease.member
      ORDER BY o.n DESC
      LIMIT 1)
  RETURNING h.n INTO newest;
  INSERT INTO reservation.heartbeats (member, n, expires_at)
  VALUES (renew_lease.member, coalesce(newest + 1, 0), clock_timestamp() + lease);
  RETURN true;
END
$$;

-- Until when a member lives; NULL if it is no member.
CREATE OR REPLACE FUNCTION reservation.lease_end(member bigint) RETURNS timestamptz
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
  SELECT h.expires_at FROM reservation.heartbeats h
  WHERE h.member = lease_end.member
  ORDER BY h.n DESC
  LIMIT 1
$$;

-- Ends a membership; what the member holds is then free.
CREATE OR REPLACE FUNCTION reservation.remove_member(member bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
  DELETE FROM reservation.members m WHERE m.member = remove_member.member;
  DELETE FROM reservation.heartbeats h
  WHERE h.member = remove_member.member
    AND h.n = (
      SELECT o.n FROM reservation.heartbeats o
      WHERE o.member = remove_member.member
      ORDER BY o.n DESC
      LIMIT 1);
END
$$;

-- Whether a member is gone, for those who only look: its time is over, or its session has ended.
CREATE OR REPLACE FUNCTION reservation.is_gone(member bigint) RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
  SELECT coalesce(reservation.lease_end(is_gone.member) < clock_timestamp(), true)
    OR NOT EXISTS (
      SELECT FROM pg_locks l
      WHERE l.locktype = 'advisory' AND l.mode = 'ExclusiveLock' AND l.granted
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND (l.classid::bigint, l.objid::bigint, l.objsubid)
            = (-1201006963 & 4294967295, is_gone.member & 2147483647, 2))
$$;

-- Ends the session of a member that was taken for dead, if it has waited for its client for a second, in a transaction:
-- the process may hang for ever, and what it has locked is needed by others. The server's own limit to such a pause
-- does not count where the process has sent a part of a message, or what follows a message without a Sync. Nothing
-- where the caller's role may not end the session.
CREATE OR REPLACE FUNCTION reservation.end_hung_session(member bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  PERFORM pg_terminate_backend(l.pid)
  FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
  WHERE l.locktype = 'advisory' AND l.mode = 'ExclusiveLock' AND l.granted
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND (l.classid::bigint, l.objid::bigint, l.objsubid)
        = (-1201006963 & 4294967295, end_hung_session.member & 2147483647, 2)
    AND a.state <> 'idle' AND a.wait_event = 'ClientRead'
    AND a.state_change < clock_timestamp() - interval '1 second';
EXCEPTION WHEN insufficient_privilege THEN
  NULL;
END
$$;

-- Makes a process a member; and the group, with so many partitions, if it is not there. `former` is the
-- member that the same process was on a connection that it lost; NULL at first. What it held is kept.
CREATE OR REPLACE FUNCTION reservation.join_group(
  consumer text, category text, partitions integer, process text, worker text, lease interval,
  former bigint
) RETURNS TABLE (member bigint, partitions_there integer)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);

  INSERT INTO reservation.groups (consumer, category, partitions)
  VALUES (join_group.consumer, join_group.category, join_group.partitions)
  ON CONFLICT DO NOTHING;

  -- Before the row is locked for sharing, or two that join at once would wait for each other.
  UPDATE reservation.groups g SET first_position = joined.position
  FROM (
    SELECT coalesce(min(p.position), 0) AS position
    FROM reservation.positions p
    WHERE (p.consumer, p.category) = (join_group.consumer, join_group.category)
  ) AS joined
  WHERE (g.consumer, g.category) = (join_group.consumer, join_group.category)
    AND (g.first_position IS NULL OR g.first_position > joined.position);

  SELECT g.partitions INTO partitions_there
  FROM reservation.groups g
  WHERE (g.consumer, g.category) = (join_group.consumer, join_group.category)
  FOR SHARE;

  WITH added AS (
    INSERT INTO reservation.leases (consumer, category, partition, epoch)
    SELECT join_group.consumer, join_group.category, i, 0
    FROM generate_series(0, partitions_there - 1) AS i
    ON CONFLICT DO NOTHING
    RETURNING partition
  )
  INSERT INTO reservation.moves (consumer, category, partition)
  SELECT join_group.consumer, join_group.category, a.partition FROM added AS a;

  INSERT INTO reservation.members (consumer, category, process, worker)
  VALUES (join_group.consumer, join_group.category, join_group.process, join_group.worker)
  RETURNING member INTO join_group.member;
  INSERT INTO reservation.heartbeats (member, expires_at)
  VALUES (join_group.member, clock_timestamp() + lease);

  -- Waits for a transaction that moves one of the positions: it may be our own, of the connection
  -- that was lost while it committed.
  UPDATE reservation.leases l SET holder = join_group.member
  WHERE (l.consumer, l.category) = (join_group.consumer, join_group.category) AND l.holder = former;
  PERFORM reservation.remove_member(former);

  PERFORM pg_advisory_lock(-1201006963, (join_group.member & 2147483647)::integer);
  RETURN NEXT;
END
$$;

-- Ends a membership, and gives back what the member holds.
CREATE OR REPLACE FUNCTION reservation.leave_group(member bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  UPDATE reservation.leases l SET holder = NULL
  FROM reservation.members m
  WHERE m.member = leave_group.member AND l.holder = m.member
    AND (l.consumer, l.category) = (m.consumer, m.category);
  PERFORM reservation.remove_member(leave_group.member);
END
$$;

-- How many free partitions of its category a member is to take; how many to give back if it is negative.
--
-- Taking: each free partition goes to whoever has the least load when those before it are taken, the first by
-- name of several. Giving: a free partition counts as load of all who may take it, so that nothing more is
-- given to somebody who has yet to take something.
--
-- Where all processes read the same categories, each category is shared equally too: what a process holds
-- of the category itself outweighs its load. The load is balanced by that as well, because there is always a
-- category of which the one with more partitions has more.
CREATE OR REPLACE FUNCTION reservation.change_of_share(consumer text, category text, member bigint)
RETURNS integer
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
  RETURN (WITH living AS MATERIALIZED (
    SELECT m.worker, array_agg(DISTINCT m.category ORDER BY m.category) AS categories,
           array_agg(m.member) AS members
    FROM reservation.members m
    WHERE m.consumer = change_of_share.consumer
    GROUP BY m.worker
  ), held AS MATERIALIZED (
    SELECT l.category, w.worker, count(*) AS n,
           count(*) FILTER (WHERE l.holder = change_of_share.member) AS own
    FROM reservation.leases l LEFT JOIN living w ON l.holder = ANY (w.members)
    WHERE l.consumer = change_of_share.consumer
    GROUP BY l.category, w.worker
  ), free AS (
    SELECT coalesce(sum(h.n), 0) AS n
    FROM held h WHERE h.worker IS NULL AND h.category = change_of_share.category
  ), weight AS (
    SELECT CASE WHEN count(DISTINCT w.categories) = 1 THEN 1000000 ELSE 0 END AS n FROM living w
  ), workers AS MATERIALIZED (
    SELECT w.worker, change_of_share.member = ANY (w.members) AS is_own,
           coalesce(sum(h.n) FILTER (WHERE h.worker IS NOT NULL), 0)
             + weight.n * coalesce(sum(h.n) FILTER (WHERE h.worker IS NOT NULL AND h.category = change_of_share.category), 0)
               AS load,
           coalesce(sum(h.n) FILTER (WHERE h.worker IS NULL), 0) + weight.n * free.n AS promised
    FROM living w
    CROSS JOIN free
    CROSS JOIN weight
    LEFT JOIN held h ON h.worker = w.worker OR h.worker IS NULL AND h.category = ANY (w.categories)
    WHERE change_of_share.category = ANY (w.categories)
    GROUP BY w.worker, w.members, weight.n, free.n
  )
  SELECT (
    SELECT count(*) FILTER (WHERE taken.is_own)
    FROM (
      SELECT w.is_own
      FROM free, weight, workers w, generate_series(1, free.n) AS number
      ORDER BY w.load + number * (1 + weight.n), w.worker
      LIMIT (SELECT f.n FROM free f)
    ) AS taken
  )::integer - coalesce((
    SELECT greatest(least(
      (SELECT sum(h.own) FROM held h),
      div(own.load - min(other.load + other.promised) + weight.n, 2 + 2 * weight.n)), 0)
    FROM weight, workers own, workers other
    WHERE own.is_own AND NOT other.is_own
    GROUP BY own.load, weight.n), 0)::integer);
END
$$;

-- Renews the lease of a member, removes members that are gone, takes or gives back partitions until
-- it has its share, and returns what it holds. Without `may_release` it gives nothing back: it
-- searches for a message that ended a process, and the next holder would not know of that. No row
-- if the member was taken for dead. `foreign_at` is the highest of its positions taken in another
-- log, NULL if none was. `unsettled`: a partition is free.
CREATE OR REPLACE FUNCTION reservation.rebalance(
  consumer text, category text, member bigint, lease interval, may_release boolean DEFAULT true
) RETURNS TABLE (
  head bigint, former_positions bigint[], held integer[], positions bigint[], epochs bigint[],
  abandoned integer[], letters boolean, foreign_at bigint, unsettled boolean
)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
  change integer;
  one record;
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);

  IF NOT reservation.renew_lease(rebalance.member, lease) THEN
    RETURN;
  END IF;

  FOR one IN
    SELECT m.member FROM reservation.members m
    WHERE (m.consumer, m.category) = (rebalance.consumer, rebalance.category)
      AND m.member <> rebalance.member
      AND (reservation.lease_end(m.member) < clock_timestamp()
           OR pg_try_advisory_xact_lock_shared(-1201006963, (m.member & 2147483647)::integer))
    ORDER BY m.member
  LOOP
    -- One that is locked is just being renewed, or was while the lock was waited for.
    PERFORM FROM reservation.members m WHERE m.member = one.member FOR UPDATE SKIP LOCKED;
    IF FOUND AND reservation.is_gone(one.member) THEN
      PERFORM reservation.remove_member(one.member);
      PERFORM reservation.end_hung_session(one.member);
    END IF;
  END LOOP;

  -- Mostly there is nothing to change. Else it is computed again under a lock, so that members that change
  -- their shares at once know of each other.
  change := reservation.change_of_share(rebalance.consumer, rebalance.category, rebalance.member);
  IF change <> 0 THEN
    PERFORM pg_advisory_xact_lock(hashtextextended('reservation.shares ' || rebalance.consumer, 0));
    change := reservation.change_of_share(rebalance.consumer, rebalance.category, rebalance.member);
  END IF;

  IF change < 0 AND may_release THEN
    UPDATE reservation.leases l SET holder = NULL
    FROM (
      SELECT o.partition FROM reservation.leases o
      WHERE (o.consumer, o.category) = (rebalance.consumer, rebalance.category)
        AND o.holder = rebalance.member
      ORDER BY o.partition DESC
      LIMIT -change
      FOR UPDATE SKIP LOCKED
    ) AS given
    WHERE (l.consumer, l.category) = (rebalance.consumer, rebalance.category)
      AND l.partition = given.partition;
  END IF;

  abandoned := '{}';
  unsettled := false;
  FOR one IN
    SELECT l.partition, l.holder
    FROM reservation.leases l
    WHERE (l.consumer, l.category) = (rebalance.consumer, rebalance.category)
      AND (l.holder IS NULL OR l.holder NOT IN (SELECT m.member FROM reservation.members m))
    ORDER BY l.partition
  LOOP
    unsettled := unsettled OR change <= 0;
    EXIT WHEN change <= 0;
    -- A row that is locked is being moved by a member that has just been found dead: at the next time.
    PERFORM FROM reservation.leases l
    WHERE (l.consumer, l.category) = (rebalance.consumer, rebalance.category)
      AND l.partition = one.partition AND l.holder IS NOT DISTINCT FROM one.holder
    FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
      PERFORM reservation.end_hung_session(one.holder);
      unsettled := true;
      CONTINUE;
    END IF;
    UPDATE reservation.leases l SET holder = rebalance.member, epoch = l.epoch + 1
    WHERE (l.consumer, l.category) = (rebalance.consumer, rebalance.category)
      AND l.partition = one.partition;
    change := change - 1;
    IF one.holder IS NOT NULL THEN
      abandoned := abandoned || one.partition;
    END IF;
  END LOOP;

  SELECT coalesce(array_agg(p.partition ORDER BY p.partition), '{}'),
         coalesce(array_agg(p.position ORDER BY p.partition), '{}'),
         coalesce(array_agg(p.epoch ORDER BY p.partition), '{}'),
         max(p.position) FILTER (WHERE reservation.is_foreign(p.position, p.message_id))
  INTO held, positions, epochs, foreign_at
  FROM reservation.positions p
  WHERE (p.consumer, p.category) = (rebalance.consumer, rebalance.category)
    AND p.holder = rebalance.member;

  SELECT g.former_positions INTO former_positions FROM reservation.groups g
  WHERE (g.consumer, g.category) = (rebalance.consumer, rebalance.category);
  IF held <> '{}' AND former_positions IS NOT NULL
      AND reservation.has_foreign_former_positions(rebalance.consumer, rebalance.category) THEN
    foreign_at := (SELECT max(c.position) FROM unnest(former_positions) AS c("position"));
  END IF;
  head := reservation.category_head(rebalance.category);
  letters := reservation.may_have_due_letters(rebalance.consumer, rebalance.category);
  RETURN NEXT;
END
$$;
