"""Storing how far a consumer is, as if it had run."""

from typing import Any

from psycopg import Connection


def store_position(
    connection: Connection[Any],
    consumer: str,
    category: str,
    position: int = 0,
    partition: int = 0,
    epoch: int = 1,
    message_id: object = None,
) -> None:
    """Store the position of a partition, whether or not it has one."""
    place = {"consumer": consumer, "category": category, "partition": partition}
    connection.execute(
        "INSERT INTO reservation.leases (consumer, category, partition, epoch) "
        "VALUES (%(consumer)s, %(category)s, %(partition)s, %(epoch)s) ON CONFLICT DO NOTHING",
        place | {"epoch": epoch},
    )
    connection.execute(
        "DELETE FROM reservation.moves WHERE (consumer, category, partition) "
        "= (%(consumer)s, %(category)s, %(partition)s)",
        place,
    )
    connection.execute(
        "INSERT INTO reservation.moves (consumer, category, partition, position, message_id) "
        "VALUES (%(consumer)s, %(category)s, %(partition)s, %(position)s, %(message_id)s)",
        place | {"position": position, "message_id": message_id},
    )
