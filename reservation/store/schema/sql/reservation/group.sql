-- A consumer's processes are the members of a group and share its partitions out among themselves. A
-- member says every now and then that it lives; what it holds is free for the others once it has not
-- done so for the time of its lease, or its session has ended. Who takes a partition adds one to its
-- epoch, and a batch commits only with the newest: a member that was taken for dead does no harm.
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
BEGIN
  UPDATE reservation.leases l SET expires_at = clock_timestamp() + lease
  WHERE l.member = renew_lease.member
    AND l.generation >= (
      SELECT g.generation FROM reservation.leases g
      WHERE g.member = renew_lease.member
      ORDER BY g.generation DESC LIMIT 1);
  RETURN FOUND;
END
$$;

-- Until when a member lives; NULL if it is no member.
CREATE OR REPLACE FUNCTION reservation.lease_end(member bigint) RETURNS timestamptz
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
  SELECT l.expires_at FROM reservation.leases l
  WHERE l.member = lease_end.member
  ORDER BY l.generation DESC LIMIT 1
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
  consumer text, category text, partitions integer, process text, partition integer,
  lease interval, former bigint
) RETURNS TABLE (member bigint, partitions_there integer)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
  one record;
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);

  INSERT INTO reservation.groups (consumer, category, partitions)
  VALUES (join_group.consumer, join_group.category, join_group.partitions)
  ON CONFLICT DO NOTHING;

  -- Before the row is locked for sharing, or two that join at once would wait for each other.
  UPDATE reservation.groups g SET first_position = joined.position
  FROM (
    SELECT coalesce(min(p.position), 0) AS position
    FROM reservation.positions_of(join_group.consumer, join_group.category) p
  ) AS joined
  WHERE (g.consumer, g.category) = (join_group.consumer, join_group.category)
    AND (g.first_position IS NULL OR g.first_position > joined.position);

  -- Who adds partitions updates the group, so that of two that join at once the second sees what the first
  -- has added, or fails to serialize: the key alone does not refuse a second row of a partition.
  UPDATE reservation.groups g SET partitions = g.partitions
  WHERE (g.consumer, g.category) = (join_group.consumer, join_group.category)
    AND g.partitions > (
      SELECT count(*) FROM reservation.positions_of(join_group.consumer, join_group.category))
  RETURNING g.partitions INTO partitions_there;
  IF FOUND THEN
    INSERT INTO reservation.positions (consumer, category, partition, epoch)
    SELECT join_group.consumer, join_group.category, n, 0
    FROM generate_series(0, partitions_there - 1) AS n
    WHERE n NOT IN (
      SELECT p.partition
      FROM reservation.positions_of(join_group.consumer, join_group.category) p);
  END IF;

  SELECT g.partitions INTO partitions_there
  FROM reservation.groups g
  WHERE (g.consumer, g.category) = (join_group.consumer, join_group.category)
  FOR SHARE;

  INSERT INTO reservation.members (consumer, category, process, partition)
  VALUES (join_group.consumer, join_group.category, join_group.process, join_group.partition)
  RETURNING member INTO join_group.member;
  INSERT INTO reservation.leases (member, expires_at)
  VALUES (join_group.member, clock_timestamp() + lease);

  -- Waits for a transaction that moves one of the positions: it may be our own, of the connection
  -- that was lost while it committed.
  FOR one IN
    SELECT p.partition, p.generation
    FROM reservation.positions_of(join_group.consumer, join_group.category) p
    WHERE p.holder = former
    ORDER BY p.partition
  LOOP
    UPDATE reservation.positions p SET holder = join_group.member
    WHERE p.consumer = join_group.consumer AND p.category = join_group.category
      AND p.partition = one.partition AND p.generation >= one.generation
      AND p.holder = former;
  END LOOP;
  DELETE FROM reservation.members m WHERE m.member = former;

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
DECLARE
  one record;
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  FOR one IN
    SELECT p.consumer, p.category, p.partition, p.generation
    FROM reservation.members m
    CROSS JOIN LATERAL reservation.positions_of(m.consumer, m.category) p
    WHERE m.member = leave_group.member AND p.holder = m.member
    ORDER BY p.partition
  LOOP
    UPDATE reservation.positions p SET holder = NULL
    WHERE p.consumer = one.consumer AND p.category = one.category
      AND p.partition = one.partition AND p.generation >= one.generation
      AND p.holder = leave_group.member;
  END LOOP;
  DELETE FROM reservation.members m WHERE m.member = leave_group.member;
END
$$;

-- Says that a member lives, finds those that do not, takes and gives back partitions until it has
-- its fair share, and returns what it holds. No row if the member was taken for dead. `foreign_at` is the
-- highest of its positions that was taken in another log, NULL if none was.
CREATE OR REPLACE FUNCTION reservation.take_part(
  consumer text, category text, member bigint, lease interval
) RETURNS TABLE (
  head bigint, carried bigint[], held integer[], positions bigint[], epochs bigint[],
  unclean integer[], retry boolean, foreign_at bigint
)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
  own integer;      -- the only partition that the member may have
  fixed integer[];  -- those that members with a fixed part have
  share integer;    -- how many the member is to have
  free integer;     -- how many of them it does not have yet
  one record;
  holder bigint;
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);

  IF NOT reservation.renew_lease(take_part.member, lease) THEN
    RETURN;
  END IF;
  SELECT m.partition INTO own FROM reservation.members m WHERE m.member = take_part.member;

  -- A lease that is locked is just being renewed.
  FOR one IN
    SELECT m.member FROM reservation.members m
    WHERE (m.consumer, m.category) = (take_part.consumer, take_part.category)
      AND m.member <> take_part.member
    ORDER BY m.member
  LOOP
    PERFORM FROM reservation.leases l
    WHERE l.member = one.member
      AND l.generation >= (
        SELECT g.generation FROM reservation.leases g
        WHERE g.member = one.member
        ORDER BY g.generation DESC LIMIT 1)
      AND (l.expires_at < clock_timestamp()
           OR pg_try_advisory_xact_lock_shared(-1201006963, (one.member & 2147483647)::integer))
    FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
      DELETE FROM reservation.members m WHERE m.member = one.member;
      PERFORM reservation.end_hung_session(one.member);
    END IF;
  END LOOP;

  SELECT coalesce(array_agg(m.partition) FILTER (WHERE m.partition IS NOT NULL), '{}')
  INTO fixed
  FROM reservation.members m
  WHERE (m.consumer, m.category) = (take_part.consumer, take_part.category)
    AND m.member <> take_part.member;

  SELECT CASE WHEN own IS NULL THEN (p.n + s.behind) / s.n ELSE 1 END
  INTO share
  FROM (
    SELECT count(*)::integer AS n, count(*) FILTER (WHERE m.member > take_part.member)::integer AS behind
    FROM reservation.members m
    WHERE (m.consumer, m.category) = (take_part.consumer, take_part.category)
      AND (m.partition IS NULL OR m.member = take_part.member)
  ) AS s, (
    SELECT count(*)::integer AS n
    FROM reservation.positions_of(take_part.consumer, take_part.category) p
    WHERE own IS NOT NULL OR p.partition <> ALL (fixed)
  ) AS p;

  free := share;
  FOR one IN
    SELECT p.partition, p.generation, own IS NOT NULL OR p.partition <> ALL (fixed) AS may_keep
    FROM reservation.positions_of(take_part.consumer, take_part.category) p
    WHERE p.holder = take_part.member
    ORDER BY p.partition
  LOOP
    IF one.may_keep AND free > 0 THEN
      free := free - 1;
    ELSE
      UPDATE reservation.positions p SET holder = NULL
      WHERE p.consumer = take_part.consumer AND p.category = take_part.category
        AND p.partition = one.partition AND p.generation >= one.generation
        AND p.holder = take_part.member;
    END IF;
  END LOOP;

  unclean := '{}';
  FOR one IN
    SELECT p.partition, p.generation, p.holder
    FROM reservation.positions_of(take_part.consumer, take_part.category) p
    WHERE (p.holder IS NULL OR p.holder NOT IN (SELECT m.member FROM reservation.members m))
      AND CASE WHEN own IS NULL THEN p.partition <> ALL (fixed) ELSE p.partition = own END
    ORDER BY p.partition
  LOOP
    EXIT WHEN free <= 0;
    -- A row that is locked is being moved by a member that has just been found dead: at the next time.
    SELECT p.holder INTO holder
    FROM reservation.positions p
    WHERE p.consumer = take_part.consumer AND p.category = take_part.category
      AND p.partition = one.partition AND p.generation >= one.generation
      AND (p.holder IS NULL OR p.holder NOT IN (SELECT m.member FROM reservation.members m))
    FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
      PERFORM reservation.end_hung_session(one.holder);
      CONTINUE;
    END IF;
    UPDATE reservation.positions p SET holder = take_part.member, epoch = p.epoch + 1
    WHERE p.consumer = take_part.consumer AND p.category = take_part.category
      AND p.partition = one.partition AND p.generation >= one.generation;
    free := free - 1;
    IF holder IS NOT NULL THEN
      unclean := unclean || one.partition;
    END IF;
  END LOOP;

  SELECT coalesce(array_agg(p.partition ORDER BY p.partition), '{}'),
         coalesce(array_agg(p.position ORDER BY p.partition), '{}'),
         coalesce(array_agg(p.epoch ORDER BY p.partition), '{}'),
         max(p.position) FILTER (WHERE reservation.is_foreign(p.position, p.message_id))
  INTO held, positions, epochs, foreign_at
  FROM reservation.positions_of(take_part.consumer, take_part.category) p
  WHERE p.holder = take_part.member;

  SELECT g.carried INTO carried FROM reservation.groups g
  WHERE (g.consumer, g.category) = (take_part.consumer, take_part.category);
  IF held <> '{}' AND carried IS NOT NULL
      AND reservation.carries_foreign(take_part.consumer, take_part.category) THEN
    foreign_at := (SELECT max(c.position) FROM unnest(carried) AS c("position"));
  END IF;
  head := reservation.category_head(take_part.category);
  -- In the order of their index: where the planner expects many of them, it would look through all letters.
  retry := (
    SELECT true FROM reservation.dead_letters l
    WHERE (l.consumer, l.category, l.state) = (take_part.consumer, take_part.category, 'retry')
    ORDER BY l.entity, l.global_position
    LIMIT 1) IS NOT NULL;
  RETURN NEXT;
END
$$;
