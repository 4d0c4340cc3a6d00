"""The messages that the benchmarks write, and the peer's way of doing the same work."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from message_db.client import MessageDB
from psycopg import Connection, conninfo

from bank.messages import Deposit
from reservation import Write, codec

ACCOUNTS = 500
TIME = datetime(2026, 1, 1, tzinfo=UTC)


def deposits(count: int, *, keys: int | None = None) -> list[Write]:
    """Return deposits for many accounts; fewer keys than deposits make reissues at the end."""
    keys = keys or count
    return [
        Write(
            Deposit(f"d{n % keys}", str(n % keys % ACCOUNTS), Decimal("10.50"), TIME),
            f"account:command-{n % keys % ACCOUNTS}",
        )
        for n in range(count)
    ]


def peer(database_url: str) -> MessageDB:
    """Return message-db-py on the same database."""
    address = conninfo.make_conninfo(database_url, options="-csearch_path=message_store")
    return MessageDB.from_url(address, max_connections=1)


def copy(connection: Connection[Any], writes: list[Write], category: str) -> None:
    """COPY the same rows into the same indexed table, each the first of a stream."""
    with connection.cursor().copy(
        "COPY message_store.messages (stream_name, position, type, data) FROM STDIN"
    ) as rows:
        for n, write in enumerate(writes):
            rows.write_row((f"{category}-{n}", 0, "Deposit", codec.encode(write.message)))
