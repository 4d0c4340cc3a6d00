"""The messages that the benchmarks write, the work that they do, and message-db-py's pattern."""

import gc
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import structlog
from message_db.client import MessageDB
from psycopg import Connection, conninfo

from bank.messages import Deposit, Deposited
from benchmarks.harness import rate
from consumers.batch.batch_runner import BatchRunner
from consumers.group.membership import Membership, new_worker
from consumers.runtime.context import ConsumerContext
from consumers.runtime.garbage import spare_batches
from consumers.runtime.session import Session
from reservation import Component, MessageStore, Write
from reservation.declaration.table import declarations
from reservation.idempotence.key import KeyFunction
from reservation.messages.ids import uuid7
from reservation.postgres.arrays import ArrayCursor, IntArray, JsonArray, TextArray, UuidArray
from reservation.postgres.queries import load_queries
from reservation.serialization import codec
from reservation.strategies import StateBased

ACCOUNTS = 500
TIME = datetime(2026, 1, 1, tzinfo=UTC)
BATCH = 500  # of what is written
CONSUMED = 1_000  # of what is consumed: the default of a consumer

_QUERIES = load_queries("benchmarks")


def deposits(
    count: int, category: str, *, keys: int | None = None, accounts: int = ACCOUNTS
) -> list[Write]:
    """Return deposits for many accounts; fewer keys than deposits make reissues at the end."""
    keys = keys or count
    return [
        Write(
            Deposit(f"d{n % keys}", str(n % keys % accounts), Decimal("10.50"), TIME),
            f"{category}-{n % keys % accounts}",
        )
        for n in range(count)
    ]


def by_function(command: Deposit) -> str:
    """Return the idempotence key of a deposit, as a function that the server cannot look into."""
    return command.deposit_id


@dataclass
class Balance:
    """The state of an account, where one is kept."""

    deposits: int = 0
    last: str = ""


def component(
    name: str, key: str | KeyFunction = "deposit_id", once: StateBased | None = None
) -> Component:
    """Declare a component that reserves deposits and handles each by writing what happened."""
    declared = Component(name, entity=Balance, id="account_id")
    declared.message(Deposited)

    @declared.handle(Deposit, key=key, once=once)
    def deposit(command: Deposit, balance: Balance, context: Any) -> Deposited:
        balance.deposits += 1
        balance.last = command.deposit_id
        return context.follow(command, Deposited, processed_time=TIME, sequence=context.sequence)

    return declared


def in_batches(writes: Sequence[Write]) -> list[Sequence[Write]]:
    """Cut writes into batches."""
    return [writes[n : n + BATCH] for n in range(0, len(writes), BATCH)]


def write_batches(store: MessageStore, writes: Sequence[Write]) -> float:
    """Write in batches; return messages a second."""
    return rate(len(writes), lambda: [store.write_batch(batch) for batch in in_batches(writes)])


@contextmanager
def consumer(
    connection: Connection[Any], declared: Component, category: str
) -> Iterator[Callable[[], int]]:
    """Give a function that runs batches of a category and returns the messages read."""
    log = structlog.get_logger()
    spare_batches()  # as a consumer's process does
    with Session(connection.info.dsn, "reservation bench", log) as session:
        membership = Membership(session, declared.name, category, None, new_worker(), log)
        membership.join(session.connection)
        membership.rebalance(session.connection)
        batch = BatchRunner(ConsumerContext.of(session.connection, declared, category))

        def step() -> int:
            results = batch.run(membership.positions, CONSUMED, may_continue=lambda: True)
            return sum(result.read for result in results)

        yield step


def drain(step: Callable[[], int]) -> int:
    """Run batches until there is nothing left to read; return the messages read."""
    done = 0
    while read := step():
        done += read
    return done


def consume(connection: Connection[Any], declared: Component, category: str, count: int) -> float:
    """Read a category of this number of messages to its end; return messages a second."""
    done = []
    with consumer(connection, declared, category) as step:
        reached = rate(count, lambda: done.append(drain(step)))
    assert done == [count]
    return reached


def reserve(
    connection: Connection[Any],
    name: str,
    count: int,
    *,
    keys: int,
    key: str | KeyFunction = "deposit_id",
) -> float:
    """Send commands, not timed, and reserve them; return commands a second."""
    declared = component(name, key)
    write_batches(
        MessageStore(connection),
        deposits(count, declarations(declared).command_category, keys=keys),
    )
    reached = consume(connection, declared, declarations(declared).command_category, count)
    assert stored(connection, f"{name}Transaction") == keys
    return reached


def read_category(connection: Connection[Any], category: str, count: int) -> float:
    """Read a category into typed messages; return messages a second."""

    def read() -> None:
        decoded = 0
        for message in MessageStore(connection).read_category(category):
            message.decode(Deposit)
            decoded += 1
        assert decoded == count

    return rate(count, read)


def select_category(connection: Connection[Any], category: str, count: int) -> float:
    """Read the same rows with a bare SELECT into tuples; return rows a second."""
    query = (
        "SELECT id::text, stream_name, type, position, global_position, data::text, "
        "metadata::text, time FROM message_store.messages "
        "WHERE message_store.category(stream_name) = %s ORDER BY global_position"
    )

    def read() -> None:
        assert len(connection.execute(query, [category]).fetchall()) == count

    return rate(count, read)


def stored_rows(connection: Connection[Any], category: str) -> list[tuple[Any, ...]]:
    """Return the rows of a category, as `copy` takes them."""
    return connection.execute(
        "SELECT id, stream_name, position, type, data::text, metadata::text "
        "FROM message_store.messages WHERE message_store.category(stream_name) = %s "
        "ORDER BY global_position",
        [category],
    ).fetchall()


def encoded_rows(writes: Iterable[Write]) -> Iterable[tuple[Any, ...]]:
    """Give the rows that writes become, encoding each message as it is asked for."""
    versions: dict[str, int] = {}
    for write in writes:
        position = versions[write.stream_name] = versions.get(write.stream_name, -1) + 1
        data = codec.encode(write.message)
        yield uuid7(), write.stream_name, position, type(write.message).__name__, data, None


def copy(connection: Connection[Any], rows: Iterable[tuple[Any, ...]], count: int) -> float:
    """COPY rows into the indexed table; return rows a second."""

    def run() -> None:
        with connection.cursor().copy(
            "COPY message_store.messages (id, stream_name, position, type, data, metadata) "
            "FROM STDIN"
        ) as sink:
            for row in rows:
                sink.write_row(row)

    return rate(count, run)


def insert(connection: Connection[Any], writes: Sequence[Write]) -> float:
    """INSERT the rows that writes become in batches, with nothing checked; return rows a second."""

    def run() -> None:
        rows = iter(encoded_rows(writes))
        while batch := list(itertools.islice(rows, BATCH)):
            ids, names, positions, types, data, _ = zip(*batch, strict=True)
            arrays = UuidArray(ids), TextArray(names), IntArray(positions), TextArray(types)
            cursor = ArrayCursor(connection)
            cursor.execute(_QUERIES["insert"], [*arrays, JsonArray(data)], binary=True)

    return rate(len(writes), run)


def peer(database_url: str) -> MessageDB:
    """Return message-db-py on the same database."""
    address = conninfo.make_conninfo(database_url, options="-csearch_path=message_store")
    return MessageDB.from_url(address, max_connections=1)


def reserve_with_peer(client: MessageDB, name: str, count: int) -> float:
    """Reserve with message-db-py, by a round trip and a commit for each message."""

    def run() -> None:
        for command in client.read_category(f"{name}:command", 0, count):
            data = command["data"]
            stream_name = f"{name}Transaction-{data['accountId']}+{data['depositId']}"
            try:
                client.write(stream_name, command["type"], data, expected_version=-1)
            except ValueError as error:
                if "Wrong expected version" not in str(error):
                    raise

    return rate(count, run)


def stored(connection: Connection[Any], category: str) -> int:
    """Return how many messages a category has."""
    rows = connection.execute(_QUERIES["count"], {"category": category}).fetchall()
    return int(rows[0][0])


def fill(connection: Connection[Any], query: str, count: int) -> None:
    """Store messages that the server makes up, and analyze the tables.

    The indexes are made afterwards, which is how long it takes that matters.
    """
    for name in ("drop_indexes", query, "make_indexes", "analyze"):
        connection.execute(_QUERIES[name], {"count": count} if name == query else None)


def settle(connection: Connection[Any]) -> None:
    """Keep the cost of the preparation out of the measurement."""
    gc.collect()
    connection.execute("CHECKPOINT")
