"""What Message DB's functions cost the server, beside ones that are written as the original's are.

What counts is the time that the process of a session spends on the CPU, by its scheduler: on a
machine that is busy it changes less than the time that passes. Both are called in turns, and the
lowest of each counts.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from psycopg import Connection, conninfo

from benchmarks.harness import Bench, Result, benchmark
from reservation.postgres.connection import connect

ROUNDS, CALLS = 20, 300
WRITERS, WRITES, TURNS = 16, 100, 5
# A call may cost no more; the rest is what two measurements of the same differ by.
MOST = 1.03

# Each call, with the number of the round, which writes to streams that are empty, and of the call.
FUNCTIONS: Mapping[str, str] = {
    "write_message": (
        "write_message(gen_random_uuid()::varchar, 'a{round}-' || {n} % 10, 'T', '{{}}')"
    ),
    "write_message, expected": (
        "write_message(gen_random_uuid()::varchar, 'b{round}-1', 'T', '{{}}', NULL, {n} - 1)"
    ),
    "stream_version": "stream_version('account-' || {n} % 10)",
    "acquire_lock": "acquire_lock('account-' || {n} % 10)",
    "category": "category('account-' || {n})",
    "id": "id('account-' || {n})",
    "cardinal_id": "cardinal_id('account-1+' || {n})",
    "is_category": "is_category('account-' || {n})",
    "hash_64": "hash_64('account-' || {n})",
    "message_store_version": "message_store_version()",
    "get_stream_messages, 100": "get_stream_messages('account-' || {n} % 10, 0, 100)",
    "get_stream_messages, past the end": "get_stream_messages('account-' || {n} % 10, 1000000)",
    "get_stream_messages, condition": (
        "get_stream_messages('account-' || {n} % 10, 0, 100, 'position >= 0')"
    ),
    "get_category_messages, 100": "get_category_messages('account', {n}, 100)",
    "get_category_messages, past the end": "get_category_messages('account', 1000000 + {n})",
    "get_category_messages, correlation": "get_category_messages('account', {n}, 100, 'other')",
    "get_category_messages, group": "get_category_messages('account', {n}, 100, NULL, 0, 2)",
    "get_category_messages, condition": (
        "get_category_messages('account', {n}, 100, NULL, NULL, NULL, 'position >= 0')"
    ),
    "get_last_stream_message": "get_last_stream_message('account-' || {n} % 10)",
    "get_last_stream_message, type": "get_last_stream_message('account-' || {n} % 10, 'T')",
}
FILL = (
    "INSERT INTO message_store.messages (stream_name, position, type, data, metadata) "
    "SELECT name || '-' || n % 10, n / 10, 'T', jsonb_build_object('amount', n), "
    "jsonb_build_object('correlationStreamName', CASE n % 2 WHEN 0 THEN 'other-1' END) "
    "FROM unnest(ARRAY['account', 'another']) AS name, generate_series(0, 4999) AS n ORDER BY n"
)

_Store = TypeVar("_Store")


@benchmark
def message_db(bench: Bench) -> Iterator[Result]:
    """Call every function of Message DB's, ours and one that is written as the original's is."""
    with bench.database() as ours, _original(bench) as original:
        urls = (_with_path(ours), _with_path(original))
        with contextlib.ExitStack() as stack:
            both = [stack.enter_context(connect(url, autocommit=True)) for url in urls]
            for connection in both:
                connection.execute("SET synchronous_commit = off")
                connection.execute("SET message_store.sql_condition = 'on'")
                connection.execute(FILL)
                connection.execute("VACUUM ANALYZE message_store.messages")
            for name, function in FUNCTIONS.items():
                costs = _in_turns(both, ROUNDS, lambda c, n, f=function: _cost_of_calls(c, f, n))
                yield _result(name, costs)
        yield _result(f"{WRITERS} writers, expected", _in_turns(urls, TURNS, _cost_of_writers))


def _result(name: str, costs: Sequence[float]) -> Result:
    ours, original = costs
    ratio = ours / original
    against = f"as the original is, {original:.1f}"
    return Result(
        f"message_db, {name}", round(ours, 1), "us", against, round(ratio, 2), MOST, ratio <= MOST
    )


def _in_turns(
    stores: Sequence[_Store], rounds: int, cost: Callable[[_Store, int], float]
) -> list[float]:
    """Return the lowest cost in each of the stores."""
    found = [[cost(store, n) for store in stores] for n in range(rounds)]
    return [min(costs) for costs in zip(*found, strict=True)]


def _cost_of_calls(connection: Connection[Any], function: str, number: int) -> float:
    """Return the microseconds that the server works for a call, with its part of the statement."""
    # Each in a transaction of its own, and planned anew, as clients call them.
    calls = "".join(
        f"BEGIN; SELECT * FROM {function.format(round=number, n=n)}; COMMIT;" for n in range(CALLS)
    )
    before = _worked(connection)
    connection.execute(calls)
    return (_worked(connection) - before) / CALLS


def _cost_of_writers(url: str, number: int) -> float:
    """Return the microseconds that the server works for an attempt of one of many writers.

    Each reads the version of the stream that is the same for all, and writes expecting it.
    """
    costs: list[float] = []
    start = threading.Barrier(WRITERS)

    def write() -> None:
        with connect(url, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = off")
            start.wait()
            before = _worked(connection)
            for _ in range(WRITES):
                with contextlib.suppress(psycopg.errors.RaiseException):
                    connection.execute(
                        "SELECT write_message(gen_random_uuid()::varchar, %(stream)s, 'T', '{}', "
                        "NULL, coalesce(stream_version(%(stream)s), -1))",
                        {"stream": f"contended-{number}"},
                    )
            costs.append((_worked(connection) - before) / WRITES)

    threads = [threading.Thread(target=write) for _ in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(costs) / WRITERS


def _worked(connection: Connection[Any]) -> float:
    """Return the microseconds for which the process of a session has been on a CPU."""
    return int(Path(f"/proc/{connection.info.backend_pid}/schedstat").read_text().split()[0]) / 1e3


@contextlib.contextmanager
def _original(bench: Bench) -> Iterator[str]:
    """Give a database whose functions are written as the original's are."""
    ours = files("reservation.store.schema.sql") / "message_store"
    with bench.database() as url:
        with connect(url, autocommit=True) as connection, connection.transaction():
            connection.execute("DROP SCHEMA reservation, message_store CASCADE")
            connection.execute((ours / "tables.sql").read_bytes())
            connection.execute(Path(__file__).with_suffix(".sql").read_bytes())
            connection.execute((ours / "indexes.sql").read_bytes())
        yield url


def _with_path(url: str) -> str:
    return conninfo.make_conninfo(url, options="-csearch_path=message_store,public")
