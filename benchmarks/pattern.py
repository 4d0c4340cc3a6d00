"""The reservation pattern: reserving and handling, and reserving one at a time with a peer."""

from collections.abc import Iterator

from benchmarks import workload
from benchmarks.harness import Bench, Result, benchmark
from reservation import MessageStore
from reservation.postgres.connection import connect
from reservation.strategies import StateBased

COUNT, KEYS, FEW_KEYS, SAMPLE = 50_000, 45_000, 500, 2_000


@benchmark
def reserve(bench: Bench) -> Iterator[Result]:
    """Reserve 50,000 commands, by a field and by a function, and with few or many reissues."""
    with bench.database() as url, connect(url, autocommit=True) as connection:
        by_field = workload.reserve(connection, "account", COUNT, keys=KEYS)
        rows = workload.stored_rows(connection, "accountTransaction")
    with bench.database() as url, connect(url, autocommit=True) as connection:
        by_function = workload.reserve(
            connection, "account", COUNT, keys=KEYS, key=workload.by_function
        )
    with bench.database() as url, connect(url, autocommit=True) as connection:
        reissues = workload.reserve(connection, "account", COUNT, keys=FEW_KEYS)
    with bench.database() as url, connect(url, autocommit=True) as connection:
        workload.write_batches(
            MessageStore(connection), workload.deposits(COUNT, "account:command")
        )
        copied = workload.copy(connection, rows, KEYS)
    with bench.database() as url, connect(url, autocommit=True) as connection:
        sent = workload.deposits(SAMPLE, "account:command", keys=SAMPLE * KEYS // COUNT)
        workload.write_batches(MessageStore(connection), sent)
        client = workload.peer(url)
        peer = workload.reserve_with_peer(client, "account", SAMPLE)
        client.connection_pool.closeall()
    by_hand = "one at a time with message-db-py"
    yield Result.rate("reserve", by_field, by_hand, peer, 15)
    yield Result.rate("reserve", by_field, "COPY of the same rows", copied, 0.55)
    yield Result.rate("reserve_by_function", by_function, by_hand, peer, 8)
    yield Result.rate("reserve_duplicates", reissues, "10 % duplicates", by_field, 1.0)


@benchmark
def handle(bench: Bench) -> Iterator[Result]:
    """Handle 45,000 reserved copies, each with one event."""
    with bench.database() as url, connect(url, autocommit=True) as connection:
        workload.reserve(connection, "account", COUNT, keys=KEYS)
        declared = workload.component("account")
        handled = workload.consume(connection, declared, "accountTransaction", KEYS)
        rows = workload.stored_rows(connection, "account")
    with bench.database() as url, connect(url, autocommit=True) as connection:
        copied = workload.copy(connection, rows, KEYS)
    yield Result.rate("handle", handled, "COPY of the same rows", copied, 0.25)


@benchmark
def handle_state_based(bench: Bench) -> Iterator[Result]:
    """Handle 45,000 reserved copies, each with one event, with and without versions of a state."""
    rates = {}
    for name, once in (
        ("without", None),
        ("whole", StateBased()),
        ("delta", StateBased(state="delta")),
    ):
        with bench.database() as url, connect(url, autocommit=True) as connection:
            workload.reserve(connection, "account", COUNT, keys=KEYS)
            declared = workload.component("account", once=once)
            rates[name] = workload.consume(connection, declared, "accountTransaction", KEYS)
    for name in ("whole", "delta"):
        yield Result.rate(
            f"handle_state_{name}", rates[name], "without versions", rates["without"], 0.3
        )
