"""Whatever a handler does to the connection of its batch is a failure of its message alone."""

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg import Connection, IsolationLevel, sql
from psycopg.adapt import PyFormat
from psycopg.pq import Format
from psycopg.rows import dict_row
from structlog.testing import capture_logs

from reservation import Component, Context, Retry, Write
from tests.apps.bank import drain
from tests.consumers.builders import stored_letters
from tests.support.commands import invoke_cli
from tests.support.consuming import hosted, until

Trick = Callable[[Connection[Any]], Any]


@dataclass(frozen=True)
class Do:
    job_id: str
    trick: str = ""


@dataclass(frozen=True)
class Wait:
    job_id: str


@dataclass(frozen=True)
class Done:
    job_id: str


OPEN: list[Any] = []  # what handlers leave open is not closed by the garbage collector


def executes(*statements: Any) -> Trick:
    def trick(connection: Connection[Any]) -> None:
        for statement in statements:
            connection.execute(statement)

    return trick


def executes_by_a_cursor(connection: Connection[Any]) -> None:
    with connection.cursor(row_factory=dict_row) as cursor:
        cursor.execute("COMMIT")


def swallows(trick: Trick) -> Trick:
    def quiet(connection: Connection[Any]) -> None:
        with contextlib.suppress(psycopg.Error):
            trick(connection)

    return quiet


def closes_and_raises(connection: Connection[Any]) -> None:
    connection.close()
    raise ValueError


def handles_notifications(connection: Connection[Any]) -> None:
    connection.add_notify_handler(lambda notify: 1 / 0)
    connection.execute("LISTEN mine")
    connection.execute("NOTIFY mine")  # comes when the batch is committed


def leaves_a_stream(connection: Connection[Any]) -> None:
    rows = connection.cursor().stream("SELECT generate_series(1, 1000)")
    OPEN.append(rows)
    next(iter(rows))


def leaves_a_copy_in(connection: Connection[Any]) -> None:
    copy = connection.cursor().copy("COPY jobs FROM STDIN")
    OPEN.append(copy)
    copy.__enter__().write_row(["copied"])


def leaves_a_copy_out(connection: Connection[Any]) -> None:
    copy = connection.cursor().copy("COPY (SELECT generate_series(1, 100000)) TO STDOUT")
    OPEN.append(copy)
    next(iter(copy.__enter__()))


def leaves_a_pipeline(connection: Connection[Any]) -> None:
    pipeline = connection.pipeline()
    OPEN.append(pipeline)
    pipeline.__enter__()
    connection.execute("SELECT 1")


def leaves_a_block(connection: Connection[Any]) -> None:
    block = connection.transaction()
    OPEN.append(block)
    block.__enter__()


def leaves_a_cursor(connection: Connection[Any]) -> None:
    cursor = connection.cursor("mine")
    OPEN.append(cursor)
    cursor.execute("SELECT generate_series(1, 10)")


def is_cancelled(connection: Connection[Any]) -> None:
    thread = threading.Timer(0.05, connection.cancel)
    thread.start()
    try:
        connection.execute("SELECT pg_sleep(30)")
    finally:
        thread.join()


def sets(name: str, value: Any) -> Trick:
    return lambda connection: setattr(connection, name, value)


def reads_numbers_as_texts(connection: Connection[Any]) -> None:
    loader = connection.adapters.get_loader(psycopg.adapters.types["text"].oid, Format.TEXT)
    assert loader is not None
    for name in ("int2", "int4", "int8", "uuid"):
        connection.adapters.register_loader(name, loader)


def writes_texts_as_numbers(connection: Connection[Any]) -> None:
    dumper = connection.adapters.get_dumper(int, PyFormat.TEXT)
    connection.adapters.register_dumper(str, dumper)


# What makes a message fail.
FAILING: dict[str, Trick] = {
    "close": lambda c: c.close(),
    "close and raise": closes_and_raises,
    "close and then ask": lambda c: (c.close(), c.execute("SELECT 1")),
    "finish": lambda c: c.pgconn.finish(),
    "leave the block of the connection": lambda c: c.__exit__(None, None, None),
    "commit": lambda c: c.commit(),
    "roll back": lambda c: c.rollback(),
    "COMMIT": executes("COMMIT"),
    "commit in bytes": executes(b"commit work"),
    "commit composed": executes(sql.SQL("{}").format(sql.SQL("COMMIT"))),
    "commit by a cursor": executes_by_a_cursor,
    "ROLLBACK": executes("ROLLBACK"),
    "COMMIT AND CHAIN": executes("COMMIT AND CHAIN"),
    "ROLLBACK AND CHAIN": executes("/* all */ ROLLBACK AND CHAIN"),
    "another transaction": executes("ROLLBACK", "BEGIN"),
    "another transaction at once": executes("COMMIT; BEGIN"),
    "PREPARE TRANSACTION": executes("PREPARE TRANSACTION 'x'"),
    "cancel": is_cancelled,
    "swallow the cancel": swallows(is_cancelled),
    "leave a stream": leaves_a_stream,
    "leave a COPY in": leaves_a_copy_in,
    "leave a COPY out": leaves_a_copy_out,
    "leave a pipeline": leaves_a_pipeline,
    "enter pipeline mode": lambda c: c.pgconn.enter_pipeline_mode(),
    "SET TRANSACTION": executes("SET TRANSACTION READ ONLY"),
    "SET SESSION CHARACTERISTICS": executes("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"),
    "SET ROLE": executes("SET LOCAL ROLE pg_monitor"),
    "SET SESSION AUTHORIZATION": executes("SET SESSION AUTHORIZATION DEFAULT"),
    "SET": executes("SET statement_timeout = '1ms'"),
    "SET the encoding": executes("SET client_encoding = 'LATIN1'"),
    "RESET ALL": executes("RESET ALL"),
    "DEALLOCATE ALL": executes("DEALLOCATE ALL"),
    "change autocommit": lambda c: c.set_autocommit(False),
    "change the isolation": lambda c: c.set_isolation_level(IsolationLevel.SERIALIZABLE),
}

# What is said of some of them.
ERRORS = {
    "close": "closed the connection of its batch",
    "leave a stream": "left a statement unfinished",
    "swallow the cancel": "went on after a statement that failed",
}

# What others do not see.
HARMLESS: dict[str, Trick] = {
    "swallow the refusal": swallows(executes("COMMIT")),
    "leave a block": leaves_a_block,
    "leave a cursor": leaves_a_cursor,
    "SET LOCAL": executes("SET LOCAL work_mem = '1MB'", "SET CONSTRAINTS ALL IMMEDIATE"),
    "change rows": sets("row_factory", dict_row),
    "change cursors": sets("cursor_factory", psycopg.ClientCursor),
    "change preparing": sets("prepare_threshold", 0),
    "change loaders": reads_numbers_as_texts,
    "change dumpers": writes_texts_as_numbers,
    "handle notices": lambda c: c.add_notice_handler(lambda notice: 1 / 0),
    "LISTEN": executes("LISTEN mine"),
    "handle notifications": handles_notifications,
}

END = executes("SELECT pg_terminate_backend(pg_backend_pid())")
ENDING: dict[str, Trick] = {"end the session": END, "swallow the end": swallows(END)}
TRICKS = {**FAILING, **HARMLESS, **ENDING}

COMMANDS = "job:command"


def job_with(attempts: int = 2, **options: Any) -> Component[Any]:
    """Return a component whose handlers do to the connection what their commands say."""
    job: Component[Any] = Component("job", id="job_id", attempts=attempts)
    job.message(Done)

    @job.handle(Do, once=None, **options)
    def do(command: Do, entity: None, context: Context) -> Done:
        context.connection.execute("INSERT INTO jobs VALUES (%s)", [command.job_id])
        if command.trick:
            TRICKS[command.trick](context.connection)
        return Done(command.job_id)

    @job.handle(Wait, once=None)
    async def wait(command: Wait, entity: None, context: Context) -> Done:
        return Done(command.job_id)

    return job


def write(store, tricks: Any, *, waits: bool) -> list[str]:
    """Send a command for each trick, with others before and after, and return these."""
    writes, others = [], []
    for n, trick in enumerate(tricks):
        others += [f"before-{n}", f"after-{n}"]
        writes += [Do(others[-2]), Do(f"trick-{n}", trick), Do(others[-1])]
        if waits:
            others.append(f"waits-{n}")
            writes.append(Wait(others[-1]))
    store.write_batch([Write(one, f"{COMMANDS}-{one.job_id}") for one in writes])
    return others


def written(connection) -> set[str]:
    rows = connection.execute(
        "SELECT data->>'jobId' FROM message_store.messages WHERE type = 'Done'"
    )
    return {name for (name,) in rows}


SOME = ("close", "COMMIT", "leave a stream", "swallow the cancel", "SET")


@pytest.mark.parametrize(
    ("options", "waits", "failing"),
    [
        ({"attempts": 1}, False, FAILING),
        ({"retry": Retry(attempts=2, first="1ms")}, False, SOME),
        ({}, True, SOME),
    ],
    ids=["directly", "by a policy", "beside async handlers"],
)
def test_it_is_a_failure_of_its_message_alone(
    connection, store, database_url, options, waits, failing
):
    """Others of the batch are handled once, and so is what comes after."""
    fail_alone(connection, store, database_url, options, failing, waits=waits)


def fail_alone(connection, store, database_url, options, failing, *, waits=False):
    """Run the tricks in one batch, and check that each of those that fail fails alone."""
    connection.execute("CREATE TABLE jobs (id text)")
    tricks = [*failing, *HARMLESS]
    others = set(write(store, tricks, waits=waits))
    number = {trick: f"trick-{n}" for n, trick in enumerate(tricks)}
    harmless = {number[trick] for trick in HARMLESS}

    def dead() -> set[str]:
        return {
            one.stream_name.removeprefix(f"{COMMANDS}-")
            for one in stored_letters(connection)
            if (one.state, one.reason) == ("dead", "handler") and not one.waits
        }

    wrong = {number[trick] for trick in failing}
    env = {"RESERVATION_DATABASE_URL": database_url}
    with capture_logs() as logs, hosted(job_with(**options), database_url) as thread:
        until(lambda: written(connection) >= others | harmless and dead() == wrong, thread)
        assert invoke_cli("dead-letters", "retry", "--all", env=env).returncode == 0
        until(lambda: dead() == wrong, thread)
        store.write(Do("last"), f"{COMMANDS}-last")
        until(lambda: "last" in written(connection), thread)
    assert written(connection) == others | harmless | {"last"}
    rows = connection.execute("SELECT id, count(*) FROM jobs GROUP BY id").fetchall()
    handled = {name for name in others if "waits" not in name} | harmless | {"last"}
    assert {*rows} == {(name, 1) for name in handled}
    errors = {one.stream_name: one.error for one in stored_letters(connection)}
    for trick, error in ERRORS.items():
        assert error in errors[f"{COMMANDS}-{number[trick]}"]
    assert not [one for one in logs if one["event"] == "database_unavailable"]


def test_a_block_that_the_second_attempt_leaves_open_is_no_error_of_the_database(connection, store):
    """After a lost race a batch runs in a block of its own, which the handler's does not end."""
    calls: list[Any] = []
    job: Component[Any] = Component("job", id="job_id", attempts=1)
    job.message(Done)

    @job.handle(Do, once=None)
    def do(command: Do, entity: None, context: Context) -> Done:
        calls.append(command)
        if len(calls) == 1:
            context.connection.execute("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$")
        leaves_a_block(context.connection)
        return Done(command.job_id)

    store.write(Do("1"), f"{COMMANDS}-1")
    assert drain(connection, job).counts == {"handled": 1}
    assert len(calls) == 2
