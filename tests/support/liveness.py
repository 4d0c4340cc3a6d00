"""Whether all that is left in a store is left for a reason: nothing waits for ever.

To be asked once faults are over and the consumers have gone on until there was nothing to do.
"""

from typing import Any

from psycopg import Connection


def stuck(connection: Connection[Any]) -> list[str]:
    """Return what waits although nothing keeps it waiting, each with what it is."""
    return [
        f"I7, {what} of {consumer} in {category}, with no reason to wait: {where}"
        for what, consumer, category, where, reason in connection.execute(_WAITING).fetchall()
        if reason is None
    ]


# Everything that is not over, and why. A letter that is dead is for people to decide on.
_WAITING = """
    WITH open AS (
      SELECT d.*, (
        SELECT min(e.global_position) FROM reservation.dead_letters e
        WHERE (e.consumer, e.category, e.entity) = (d.consumer, d.category, d.entity)
          AND e.state IN ('waiting', 'parked', 'dead') AND e.global_position < d.global_position
      ) AS behind
      FROM reservation.dead_letters d
      WHERE d.state IN ('waiting', 'parked', 'dead')
    )
    SELECT 'a letter that is parked', consumer, category, global_position::text,
           'behind ' || behind
    FROM open WHERE state = 'parked'
    UNION ALL
    SELECT 'a letter whose next attempt is due', consumer, category, global_position::text,
           CASE WHEN next_attempt_at > now() THEN 'its time has not come'
                ELSE 'behind ' || behind END
    FROM open WHERE state = 'waiting'
    UNION ALL
    SELECT 'a letter that is dead', consumer, category, global_position::text, reason
    FROM open WHERE state = 'dead'
    UNION ALL
    SELECT 'a message that was not read', p.consumer, p.category, min(m.global_position)::text, NULL
    FROM reservation.positions p
    LEFT JOIN reservation.groups g ON (g.consumer, g.category) = (p.consumer, p.category)
    JOIN message_store.messages m ON message_store.category(m.stream_name) = p.category
      AND m.global_position > p.position
      AND m.global_position > coalesce(
        g.former_positions[
          1 + reservation.partition_of(m.stream_name, cardinality(g.former_positions))], 0)
      AND reservation.partition_of(m.stream_name, coalesce(g.partitions, 1)) = p.partition
    GROUP BY 1, 2, 3, p.partition
    UNION ALL
    SELECT 'a scheduled message', '', '', s.stream_name,
           CASE WHEN s.cancelled_at IS NOT NULL THEN 'cancelled'
                WHEN s.due_at > now() THEN 'its time has not come'
                WHEN s.attempt_at > now() THEN 'refused, ' || s.error END
    FROM reservation.scheduled s
"""
