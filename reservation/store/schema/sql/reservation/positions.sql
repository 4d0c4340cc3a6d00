-- Where each consumer is. A position changes with every batch, and an old snapshot that somebody holds keeps
-- every version of a changed row. So a position is no row that is updated: each move inserts a row and deletes
-- the one before, and a search from the newest end of the key finds the one that counts at once. What does not
-- change with a batch is in the lease, whose row every move locks: that is what a move and a takeover wait for.

-- One row for each partition. Attempts at a message that the position has passed are over.
CREATE OR REPLACE VIEW reservation.positions AS
SELECT l.consumer, l.category, l.partition, m.position, m.message_id, m.moved_at AS updated_at,
       l.epoch, l.holder, CASE WHEN l.attempted > m.position THEN l.attempted END AS attempted,
       CASE WHEN l.attempted > m.position THEN l.attempts ELSE 0 END AS attempts
FROM reservation.leases l
CROSS JOIN LATERAL (
  SELECT m.position, m.message_id, m.moved_at
  FROM reservation.moves m
  WHERE m.consumer = l.consumer AND m.category = l.category AND m.partition = l.partition
  ORDER BY m.n DESC
  LIMIT 1
) AS m;

-- Moves the positions of partitions from one message to another, each if it is still at the first and of
-- the epoch given, and in this log. Else the transaction fails with the SQLSTATE RV001.
CREATE OR REPLACE FUNCTION reservation.move_positions(
  consumer text, category text, partitions integer[], epochs bigint[], before bigint, "position" bigint,
  message_id uuid, has_former_positions boolean
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
  there uuid := coalesce(
    move_positions.message_id,
    reservation.message_at(move_positions.category, move_positions.position));
  newest bigint;
BEGIN
  FOR i IN 1 .. cardinality(partitions) LOOP
    PERFORM FROM reservation.leases l
    WHERE l.consumer = move_positions.consumer AND l.category = move_positions.category
      AND l.partition = partitions[i] AND l.epoch = epochs[i]
    FOR NO KEY UPDATE;

    -- A new statement, which sees what the lock was waited for. Of the rows it names one: a range would be
    -- a walk through those that were deleted.
    IF FOUND THEN
      DELETE FROM reservation.moves m
      WHERE m.consumer = move_positions.consumer AND m.category = move_positions.category
        AND m.partition = partitions[i]
        AND m.n = (
          SELECT o.n FROM reservation.moves o
          WHERE o.consumer = move_positions.consumer AND o.category = move_positions.category
            AND o.partition = partitions[i]
          ORDER BY o.n DESC
          LIMIT 1)
        AND m.position = before AND NOT reservation.is_foreign(m.position, m.message_id)
      RETURNING m.n INTO newest;
    END IF;

    IF NOT FOUND OR move_positions.has_former_positions
        AND reservation.has_foreign_former_positions(move_positions.consumer, move_positions.category) THEN
      RAISE EXCEPTION 'The position of partition % has not moved', partitions[i]
        USING ERRCODE = 'RV001', SCHEMA = 'reservation';
    END IF;

    INSERT INTO reservation.moves (consumer, category, partition, n, position, message_id)
    VALUES (move_positions.consumer, move_positions.category, partitions[i], newest + 1,
            move_positions.position, there);
  END LOOP;
END
$$;
