"""`context.session()`: SQLAlchemy in a handler, in the transaction of the batch."""

import queue
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import ForeignKey, select, text, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from consumers.testing import run_in_memory
from reservation import Component, Context, MessageStore, Reject, Retry, Write
from reservation.errors import DatabaseUnavailableError, HandlerError
from reservation.strategies import StateBased
from reservation.testing import given
from tests.apps.bank import drain
from tests.consumers.builders import stored_letter, stored_letters
from tests.support.pages import ROOT

COMMANDS = "job:command"
NOWAIT = "SELECT FROM jobs WHERE id = 'held' FOR UPDATE NOWAIT"


class Base(DeclarativeBase):
    """The tables of the team."""


class Job(Base):
    __tablename__ = "jobs"
    id: Mapped[str] = mapped_column(primary_key=True)
    details: Mapped[dict[str, object] | None] = mapped_column(JSONB)


class Step(Base):
    """A step, whose job is looked for at the commit."""

    __tablename__ = "steps"
    id: Mapped[str] = mapped_column(primary_key=True)
    job: Mapped[str] = mapped_column(ForeignKey("jobs.id", deferrable=True, initially="DEFERRED"))


@dataclass(frozen=True)
class Do:
    job_id: str


@dataclass(frozen=True)
class Redo:
    job_id: str


@dataclass
class Progress:
    steps: int = 0


@dataclass(frozen=True)
class Done:
    job_id: str
    note: str = ""


@pytest.fixture(autouse=True)
def _tables(connection):
    connection.execute(
        "CREATE TABLE jobs (id text PRIMARY KEY, details jsonb);"
        "CREATE TABLE steps (id text PRIMARY KEY, "
        "job text NOT NULL REFERENCES jobs DEFERRABLE INITIALLY DEFERRED)"
    )


def job_with(act, **options):
    """Return a component whose handler does something; what that returns is in its event."""
    job = Component("job", id="job_id", attempts=1)
    job.message(Done)

    @job.handle(Do, once=None, **options)
    def do(command, entity, context):
        return Done(command.job_id, act(command, context) or "")

    return job


def send(store, *names):
    """Send commands, each to an entity of its own."""
    store.write_batch([Write(Do(name), f"{COMMANDS}-{name}") for name in names])


@contextmanager
def raising(error):
    """Run a block that an exception ends."""
    with pytest.raises(error):
        yield


def jobs(connection):
    return [row[0] for row in connection.execute("SELECT id FROM jobs ORDER BY id")]


def done(connection):
    """Return the names and notes of the events."""
    return connection.execute(
        "SELECT data->>'jobId', data->>'note' FROM message_store.messages WHERE type = 'Done' "
        "ORDER BY global_position"
    ).fetchall()


def add_job(command, context):
    """Write the row of a command."""
    with context.session() as session:
        session.add(Job(id=command.job_id))


def fails(connection, store, act, write=add_job):
    """Let a handler fail, and return the error, once nothing but an earlier message was handled."""

    def first_well(command, context):
        if command.job_id == "well":
            return write(command, context)
        return act(command, context)

    send(store, "well", "badly")
    assert drain(connection, job_with(first_well)).counts == {"handled": 1, "dead": 1}
    assert (jobs(connection), done(connection)) == (["well"], [("well", "")])
    return stored_letter(connection).error


# The transaction


@pytest.mark.parametrize("batch_size", [1, 1000])
def test_rows_and_events_are_committed_together(connection, store, batch_size):
    """Of several messages in a batch, those that fail leave neither rows nor events."""

    def act(command, context):
        with context.session() as session:
            session.add(Job(id=command.job_id))
            session.flush()
            assert command.job_id not in jobs(connection)
        if command.job_id in ("b", "d"):
            raise ValueError
        return "kept"

    send(store, *"abcde")
    drained = drain(connection, job_with(act), batch_size=batch_size)
    assert drained.counts == {"handled": 3, "dead": 2}
    assert jobs(connection) == [*"ace"]
    assert done(connection) == [(name, "kept") for name in "ace"]


def test_what_is_pending_is_flushed_and_read_back(connection, store):
    """The block's end flushes, also nested transactions that were left open, with their types."""

    def act(command, context):
        with context.session() as session:
            session.add(Job(id=command.job_id, details={"b": 1}))
            session.begin_nested()
            session.add(Step(id="s1", job=command.job_id))
        with context.session() as session:
            job = session.get_one(Job, command.job_id)
            assert job.details == {"b": 1}
            assert session.scalars(select(Step.job)).all() == [command.job_id]
        return job.id  # of an object that is detached

    send(store, "a")
    assert drain(connection, job_with(act)).counts == {"handled": 1}
    assert (jobs(connection), done(connection)) == (["a"], [("a", "a")])


def test_a_session_knows_nothing_of_earlier_messages(connection, store):
    """What another session has changed meanwhile is read, also within one batch."""
    connection.execute("INSERT INTO jobs VALUES ('count', '{\"n\": 0}')")

    def act(command, context):
        context.connection.execute(
            "UPDATE jobs SET details = jsonb_build_object('n', (details->>'n')::int + 1)"
        )
        with context.session() as session:
            assert not session.identity_map
            return str(session.get_one(Job, "count").details["n"])

    send(store, *"abc")
    drain(connection, job_with(act))
    assert done(connection) == [("a", "1"), ("b", "2"), ("c", "3")]


def test_a_rollback_goes_to_the_beginning_of_the_block(connection, store):
    """`rollback` and `close` take back what the block did, and nothing before it."""

    def act(command, context):
        context.connection.execute("INSERT INTO jobs VALUES ('before')")
        with context.session() as session:
            session.add(Job(id="lost"))
            session.flush()
            session.rollback()
            session.add(Job(id="closed"))
            session.flush()
            session.close()
            session.connection().rollback()
            session.add(Job(id="kept"))

    send(store, "a")
    drain(connection, job_with(act))
    assert jobs(connection) == ["before", "kept"]
    assert done(connection) == [("a", "")]


def test_an_exception_that_leaves_the_block_takes_back_only_that(connection, store):
    """A handler may catch what a block raises, and go on."""

    def act(command, context):
        with context.session() as session:
            session.add(Job(id="kept"))
        with raising(IntegrityError), context.session() as session:
            session.add(Job(id="lost"))
            session.flush()
            session.add(Job(id="kept"))
        with raising(KeyError), context.session() as session:
            session.execute(text("INSERT INTO jobs VALUES ('lost')"))
            raise KeyError
        return "went on"

    send(store, "a")
    assert drain(connection, job_with(act)).counts == {"handled": 1}
    assert (jobs(connection), done(connection)) == (["kept"], [("a", "went on")])


def test_blocks_savepoints_and_the_connection_mix(connection, store):
    """Nested blocks, nested transactions and statements of `context.connection` see each other."""

    def act(command, context):
        with context.session() as outer:
            outer.add(Job(id="outer"))
            outer.flush()
            context.connection.execute("INSERT INTO jobs VALUES ('plain')")
            with raising(IntegrityError), outer.begin_nested():
                outer.add(Job(id="plain"))
                outer.flush()
            with context.session() as inner:
                assert inner.get(Job, "outer") is not None
                inner.add(Job(id="lost"))
                inner.flush()
                inner.rollback()
                inner.add(Job(id="inner"))
            with raising(ZeroDivisionError), context.connection.transaction():
                outer.execute(text("INSERT INTO jobs VALUES ('also lost')"))
                _ = 1 / 0
            with outer.begin_nested():
                outer.add(Job(id="nested"))
            assert outer.scalars(select(Job.id).order_by(Job.id)).all() == [
                *("inner", "nested", "outer", "plain")
            ]

    send(store, "a")
    assert drain(connection, job_with(act)).counts == {"handled": 1}
    assert jobs(connection) == ["inner", "nested", "outer", "plain"]


def test_an_outer_session_that_rolls_back_within_an_inner_block_goes_to_its_own_beginning(
    connection, store
):
    """The inner block then has nothing to end, which is a failure and not silence."""

    def act(command, context):
        with context.session() as outer:
            outer.add(Job(id="outer"))
            outer.flush()
            with context.session() as inner:
                inner.add(Job(id="inner"))
                inner.flush()
                outer.rollback()

    assert "raised InvalidSavepointSpecification" in fails(connection, store, act)


def test_a_message_is_written_through_the_session(connection, store):
    """A store on the block's session writes in the transaction of the batch."""

    def act(command, context):
        with context.session() as session:
            session.add(Job(id=command.job_id))
            MessageStore(session).write(Done("x"), "other-1")
        if command.job_id == "b":
            raise ValueError

    send(store, *"ab")
    drain(connection, job_with(act))
    assert jobs(connection) == ["a"]
    assert [message.type for message in store.read_stream("other-1")] == ["Done"]


def test_a_rejection_and_a_policy_see_to_rows_as_for_the_connection(connection, store):
    """`Reject` in the block takes its rows back; a policy's attempt leaves none."""
    calls = []

    def act(command, context):
        with context.session() as session:
            session.add(Job(id=f"{command.job_id}-{len(calls)}"))
            session.flush()
            if command.job_id == "rejected":
                raise Reject("no")
        calls.append(command.job_id)
        if len(calls) < 3:
            raise ValueError

    send(store, "rejected", "retried")
    component = job_with(act, retry=Retry(attempts=5, first="1ms"))
    assert drain(connection, component).counts == {"rejected": 1, "handled": 1}
    assert jobs(connection) == ["retried-2"]


def test_nothing_is_changed_on_the_connection(connection, store, monkeypatch):
    """Its settings are those of before, and the dialect asks the server only once."""
    states, statements, asked = [], [], []
    initialize = PGDialect_psycopg.initialize

    def asking(dialect, of):
        asked.append(dialect)
        initialize(dialect, of)

    monkeypatch.setattr(PGDialect_psycopg, "initialize", asking)

    def state(one):
        names = (
            "autocommit",
            "row_factory",
            "cursor_factory",
            "prepare_threshold",
            "isolation_level",
        )
        handlers = len(one._notice_handlers), one.info.transaction_status
        json = one.adapters.get_loader(psycopg.adapters.types["jsonb"].oid, psycopg.pq.Format.TEXT)
        return *(getattr(one, name) for name in names), handlers, json, one.closed

    def act(command, context):
        context.connection.row_factory = dict_row  # of the handler's own
        states.append(state(context.connection))
        with context.session() as session:
            session.add(Job(id=command.job_id))
            assert session.execute(select(Job.id)).first()[0] == "a"
        states.append(state(context.connection))
        statements.append(context.connection.execute("SELECT 1 AS one").fetchone())

    send(store, *"abc")
    assert drain(connection, job_with(act)).counts == {"handled": 3}
    assert len(set(states)) == 1
    assert statements == [{"one": 1}] * 3
    assert len(asked) == 1


# What is refused


def commits(command, context):
    with context.session() as session:
        session.add(Job(id="x"))
        session.commit()


def commits_by_a_block(command, context):
    with context.session() as session, session.begin():
        session.add(Job(id="x"))


def commits_the_connection(command, context):
    with context.session() as session:
        session.connection().commit()


@pytest.mark.parametrize("act", [commits, commits_by_a_block, commits_the_connection])
def test_a_commit_is_the_handlers_failure(connection, store, act):
    """The line names the message and the way out, and others of the batch are not committed."""
    error = fails(connection, store, act)
    assert error == (
        "The handler of Do at job:command-badly, global position 2 committed its session, whose "
        "rows are committed with the message; leave commit() out, and end a part with `with "
        "session.begin_nested():`"
    )


def executes_commit(command, context):
    with context.session() as session:
        session.execute(text("COMMIT"))


def test_a_statement_that_commits_is_refused_as_on_the_connection(connection, store):
    """`COMMIT` as a text does not reach the server."""
    assert "raised ProgrammingError" in fails(connection, store, executes_commit)


def swallows_a_statement(command, context):
    with context.session() as session, pytest.raises(DBAPIError):
        session.execute(text("SELECT 1/0"))


def swallows_a_flush(command, context):
    with context.session() as session:
        session.add(Job(id="well"))
        with pytest.raises(IntegrityError):
            session.flush()


def swallows_the_refusal(command, context):
    with context.session() as session:
        session.add(Job(id="x"))
        with pytest.raises(HandlerError):
            session.commit()


@pytest.mark.parametrize("act", [swallows_a_statement, swallows_a_flush, swallows_the_refusal])
def test_a_block_that_goes_on_after_an_error_fails(connection, store, act):
    """What SQLAlchemy has rolled back is not lost without a word."""
    error = fails(connection, store, act)
    assert "went on after a statement that failed" in error
    assert "execute what may fail in `with session.begin_nested():`" in error


def violates_at_the_commit(command, context):
    with context.session() as session:
        session.add(Step(id="s1", job="nobody"))


def test_a_constraint_that_fails_at_the_commit_is_the_messages_failure(connection, store):
    """A deferred foreign key of a row of the session's fails its own message."""
    assert "violates foreign key" in fails(connection, store, violates_at_the_commit)


def test_handlers_without_a_connection_have_no_session(connection, store):
    """`StateBased`, async handlers and a context without a connection get one line."""
    job = Component("job", entity=Progress, id="job_id", attempts=1)
    errors = []

    def ask(context):
        with pytest.raises(HandlerError) as raised:
            context.session()
        errors.append(str(raised.value))

    @job.handle(Do, once=None)
    async def do(command, entity, context):
        ask(context)

    @job.handle(Redo, once=StateBased())
    def redo(command, entity, context):
        ask(context)

    store.write_batch([Write(one("a"), f"{COMMANDS}-a") for one in (Do, Redo)])
    assert drain(connection, job).counts == {"handled": 2}
    assert errors == [
        f"There is no connection for {name} at job:command-a, global position {n}: a handler with "
        "StateBased or async def has none, and async def has context.connected(); in a test, make "
        "the context with Context(message, connection=connection)"
        for n, name in enumerate(("Do", "Redo"), 1)
    ]


# Faults of the environment


def held(database_url):
    """Return a connection that holds the row that handlers want."""
    other = psycopg.connect(database_url)
    other.execute("SELECT FROM jobs WHERE id = 'held' FOR UPDATE")
    return other


def wants_the_row(session, context):
    session.execute(text(NOWAIT))


def wants_the_row_in_a_savepoint(session, context):
    with session.begin_nested():
        session.execute(text(NOWAIT))


def wants_the_row_by_the_connection(session, context):
    context.connection.execute(NOWAIT)


def wraps_without_a_cause(session, context):
    try:
        session.execute(text(NOWAIT))
    except DBAPIError as error:
        raise error from None


def wraps_in_its_own(session, context):
    try:
        session.execute(text(NOWAIT))
    except DBAPIError as error:
        raise KeyError from error


@pytest.mark.parametrize(
    "want",
    [
        wants_the_row,
        wants_the_row_in_a_savepoint,
        wants_the_row_by_the_connection,
        wraps_without_a_cause,
        wraps_in_its_own,
    ],
)
def test_a_lock_that_is_not_to_be_had_lets_the_batch_run_again(
    connection, store, database_url, want
):
    """An error that SQLAlchemy wraps is no failure of the message, also out of a savepoint."""
    connection.execute("INSERT INTO jobs VALUES ('held')")
    calls = []

    def act(command, context):
        calls.append(command.job_id)
        with context.session() as session:
            session.add(Job(id=command.job_id))
            session.flush()
            if len(calls) == 2:
                with held(database_url):
                    want(session, context)

    send(store, "a", "b")
    assert drain(connection, job_with(act)).counts == {"handled": 2}
    assert (jobs(connection), calls) == (["a", "b", "held"], [*"abab"])
    assert stored_letters(connection) == []


def test_a_handler_that_rejects_after_a_race_has_decided(connection, store, database_url):
    """Its block took the race back, so `Reject` stands, also if it is raised from that."""
    connection.execute("INSERT INTO jobs VALUES ('held')")

    def act(command, context):
        try:
            with held(database_url), context.session() as session:
                wants_the_row(session, context)
        except DBAPIError as error:
            raise Reject("busy") from error

    send(store, "a")
    assert drain(connection, job_with(act)).counts == {"rejected": 1}


def test_a_race_of_another_database_is_the_handlers_failure(connection, store, database_url):
    """A lock that a connection of the handler's own does not get says nothing of the batch."""
    connection.execute("INSERT INTO jobs VALUES ('held')")

    def act(command, context):
        with context.session(), held(database_url), psycopg.connect(database_url) as own:
            own.execute(NOWAIT)

    send(store, "a")
    assert drain(connection, job_with(act)).counts == {"dead": 1}
    assert "raised LockNotAvailable" in stored_letter(connection).error


def test_a_deadlock_lets_the_batch_run_again(connection, store, database_url):
    """PostgreSQL ends the handler's statement; the message is handled once, without a letter."""
    connection.execute("INSERT INTO jobs VALUES ('1'), ('2')")
    pids, threads, calls = queue.SimpleQueue(), [], []
    waiting = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"

    def oppose():
        with psycopg.connect(database_url) as other:
            other.execute("SET deadlock_timeout = '1h'")  # so that it is the handler that is ended
            other.execute("SELECT FROM jobs WHERE id = '2' FOR UPDATE")
            pids.put(other.info.backend_pid)
            other.execute("SELECT FROM jobs WHERE id = '1' FOR UPDATE")

    def act(command, context):
        calls.append(command)
        with context.session() as session:
            session.add(Job(id=command.job_id))
            if not threads:
                session.execute(text("SET LOCAL deadlock_timeout = '10ms'"))
                session.execute(update(Job).where(Job.id == "1").values(details={}))
                threads.append(threading.Thread(target=oppose))
                threads[0].start()
                pid = pids.get()
                while not connection.execute(waiting, [pid]).fetchall():
                    pass
                session.execute(update(Job).where(Job.id == "2").values(details={}))

    send(store, "a")
    assert drain(connection, job_with(act)).counts == {"handled": 1}
    threads[0].join()
    assert (len(calls), jobs(connection), done(connection)) == (2, ["1", "2", "a"], [("a", "")])


@pytest.mark.parametrize("swallows", [False, True])
def test_a_lost_connection_is_no_fault_of_the_handler(connection, store, swallows):
    """A connection that is lost in the block is opened again, and the message handled once."""
    calls = []

    def act(command, context):
        calls.append(command)
        with context.session() as session:
            session.add(Job(id=command.job_id))
            session.flush()
            if len(calls) == 1:
                pid = session.scalar(text("SELECT pg_backend_pid()"))
                connection.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
                try:
                    session.execute(text("SELECT 1"))
                except DBAPIError:
                    if not swallows:
                        raise

    send(store, "a")
    with pytest.raises(DatabaseUnavailableError, match="was lost while Do at"):
        drain(connection, job_with(act))
    assert (jobs(connection), stored_letters(connection)) == ([], [])
    assert drain(connection, job_with(act)).counts == {"handled": 1}
    assert (jobs(connection), done(connection)) == (["a"], [("a", "")])


# Tests of handlers


def test_in_a_test_a_connection_serves(database_url, connection, store):
    """`given`, `run_in_memory` and a context take a connection; the last commits nothing."""

    def act(command, context):
        with context.session() as session:
            session.add(Job(id=command.job_id))

    component = job_with(act)
    assert given(component, "a", connection=connection).when(Do("a")).outcome == "handled"
    ran = run_in_memory(component, [Do("b")], connection=connection)
    assert (ran.counts, jobs(connection)) == ({"handled": 1}, ["a", "b"])
    send(store, "c")
    (message,) = store.read_category(COMMANDS)
    with psycopg.connect(database_url) as own:
        act(Do("c"), Context(message, connection=own))
        assert jobs(own) == [*"abc"]
        own.rollback()
    assert jobs(connection) == ["a", "b"]


def test_in_a_test_without_a_connection_there_is_none():
    """The line names the way out."""
    component = job_with(lambda command, context: context.session())
    with pytest.raises(HandlerError, match="in a test, make the context with"):
        given(component, "a").when(Do("a"))


ABSENT = """
import sys
from datetime import datetime
import psycopg
from reservation import Context, StoredMessage
assert "sqlalchemy" not in sys.modules and "django" not in sys.modules
sys.modules["sqlalchemy"] = sys.modules["django"] = None  # as where they are not installed
message = StoredMessage("1", "job:command-a", "Do", 0, 1, None, None, datetime.now())
context = Context(message, connection=psycopg.connect(sys.argv[1]))
for block in (context.session, context.django):
    try:
        block()
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_what_is_not_installed_is_named(database_url):
    """A handler that needs an extra says which; without need neither is imported."""
    program = [sys.executable, "-c", ABSENT, database_url]
    done = subprocess.run(program, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines() == [
        f"HandlerError The handler of Do at job:command-a, global position 1 needs {package} for "
        f"context.{block}(); install it with pip install 'reservation[{extra}]'"
        for package, block, extra in (
            ("SQLAlchemy 2", "session", "sqlalchemy"),
            ("Django 5", "django", "django"),
        )
    ]
