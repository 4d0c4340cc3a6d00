"""Storing how far a consumer is, as if it had run."""

from typing import Any

from psycopg import Connection


def store_position(
    connection: Connection[Any], consumer: str, category: str, position: int, partition: int = 0
) -> None:
    """Store the position of a partition, whether or not it has one."""
    place = (position, consumer, category, partition)
    moved = connection.execute(
        "UPDATE reservation.positions SET position = %s "
        "WHERE (consumer, category, partition) = (%s, %s, %s)",
        place,
    )
    if not moved.rowcount:
        connection.execute(
            "INSERT INTO reservation.positions (position, consumer, category, partition) "
            "VALUES (%s, %s, %s, %s)",
            place,
        )
