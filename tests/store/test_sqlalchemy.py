"""A store on a connection or a session of SQLAlchemy, in the caller's transaction."""

import json
import sqlite3
import subprocess
import sys
import threading
from contextlib import contextmanager

import asyncpg
import psycopg
import psycopg2
import pytest
from psycopg import conninfo
from psycopg.types.json import Jsonb
from psycopg.types.string import StrDumper, TextLoader
from sqlalchemy import ForeignKey, create_engine, text
from sqlalchemy.exc import (
    IntegrityError,
    InvalidRequestError,
    PendingRollbackError,
    ResourceClosedError,
)
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
    scoped_session,
    sessionmaker,
)

from reservation import AsyncMessageStore, MessageStore
from reservation.errors import ExpectedVersionError, StoreError
from tests.store.clients import in_loop
from tests.support.controls import COMMANDS, deposit, withdraw

PSYCOPG = "postgresql+psycopg://"


class Base(DeclarativeBase):
    """The tables of the team."""


class Account(Base):
    __tablename__ = "accounts"
    id: Mapped[str] = mapped_column(primary_key=True)


class Receipt(Base):
    """A row of a receipt, whose account is looked for at the commit."""

    __tablename__ = "receipts"
    id: Mapped[str] = mapped_column(primary_key=True)
    account: Mapped[str] = mapped_column(
        ForeignKey("accounts.id", deferrable=True, initially="DEFERRED")
    )


def settings(database_url):
    """Return an address as what psycopg's `connect` takes."""
    return conninfo.conninfo_to_dict(database_url)


@pytest.fixture(name="engine")
def _engine(database_url):
    engine = create_engine(PSYCOPG, connect_args=settings(database_url))
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add(Account(id="123"))
    yield engine
    engine.dispose()


@contextmanager
def session_of(engine):
    with Session(engine) as session:
        yield session


@contextmanager
def scoped_session_of(engine):
    session = scoped_session(sessionmaker(engine))
    yield session
    session.remove()


@contextmanager
def connection_of(engine):
    with engine.connect() as connection:
        yield connection


@pytest.fixture(params=[session_of, scoped_session_of, connection_of], name="opened")
def _opened(engine, request):
    """Give what has a transaction: a session, a scoped session, and a connection."""
    with request.param(engine) as opened:
        yield opened


def receipt(key="r1", account="123"):
    return text("INSERT INTO receipts VALUES (:id, :account)").bindparams(id=key, account=account)


def found(connection):
    """Return the keys of the commands and the ids of the team's rows, as others see them."""
    commands = "SELECT data->>'depositId' FROM message_store.messages ORDER BY global_position"
    receipts = "SELECT id FROM receipts ORDER BY id"
    return tuple([row[0] for row in connection.execute(sql)] for sql in (commands, receipts))


# The transaction


def test_messages_and_rows_are_committed_together(opened, connection):
    """Several messages and a row are there after the commit, and nobody sees them before."""
    store = MessageStore(opened)
    assert store.write(deposit("d1"), COMMANDS) == 0
    opened.execute(receipt())
    assert store.write([deposit("d2"), deposit("d3")], COMMANDS) == 2
    assert [message.position for message in store.read_stream(COMMANDS)] == [0, 1, 2]
    assert found(connection) == ([], [])
    opened.commit()
    assert found(connection) == (["d1", "d2", "d3"], ["r1"])


def test_a_message_alone_is_committed(opened, connection):
    """A transaction in which SQLAlchemy itself executes nothing is committed all the same."""
    MessageStore(opened).write(deposit("d1"), COMMANDS)
    opened.commit()
    MessageStore(opened).write(deposit("d2"), COMMANDS)
    opened.rollback()
    MessageStore(opened).write(deposit("d3"), COMMANDS)
    opened.commit()
    assert found(connection) == (["d1", "d3"], [])


def test_a_rollback_takes_messages_and_rows_away(opened, connection):
    """After a rollback nothing of the transaction is there."""
    opened.execute(receipt())
    MessageStore(opened).write(deposit("d1"), COMMANDS)
    MessageStore(opened).write(deposit("d2"), COMMANDS, after="1h")
    opened.rollback()
    assert found(connection) == ([], [])
    assert connection.execute("SELECT count(*) FROM reservation.scheduled").fetchone() == (0,)


def test_an_end_without_a_commit_takes_the_message_away(engine, connection):
    """A message of a session that is closed is not there."""
    with Session(engine) as session:
        MessageStore(session).write(deposit("d1"), COMMANDS)
    with engine.connect() as own:
        MessageStore(own).write(deposit("d2"), COMMANDS)
    assert found(connection) == ([], [])


def test_a_rollback_to_a_savepoint_takes_its_message_away(opened, connection):
    """Of nested savepoints, what was written in those that were rolled back is not there."""
    store = MessageStore(opened)
    store.write(deposit("d1"), COMMANDS)
    outer = opened.begin_nested()
    store.write(deposit("d2"), COMMANDS)
    inner = opened.begin_nested()
    store.write(deposit("d3"), COMMANDS)
    inner.rollback()
    store.write(deposit("d4"), COMMANDS)
    outer.commit()
    lost = opened.begin_nested()
    store.write(deposit("d5"), COMMANDS)
    with opened.begin_nested():
        store.write(deposit("d6"), COMMANDS)
    lost.rollback()
    assert store.write(deposit("d7"), COMMANDS) == 3
    opened.commit()
    assert found(connection) == (["d1", "d2", "d4", "d7"], [])


def test_an_error_of_the_commit_is_the_callers(opened, connection):
    """A deferred constraint that fails at the commit raises SQLAlchemy's error; nothing is left."""
    opened.execute(receipt(account="nobody"))
    MessageStore(opened).write(deposit("d1"), COMMANDS)
    with pytest.raises(IntegrityError, match="receipts_account_fkey"):
        opened.commit()
    opened.rollback()
    assert found(connection) == ([], [])


def test_pending_objects_are_not_flushed_by_a_message(engine, connection):
    """A message is written at once, and pending objects with the flush of the session."""
    with Session(engine) as session:
        session.add(Receipt(id="r1", account="123"))
        MessageStore(session).write(deposit("d1"), COMMANDS)
        assert session.new
        session.commit()
    assert found(connection) == (["d1"], ["r1"])


def test_an_error_of_the_store_fails_the_transaction_unless_in_a_savepoint(opened, connection):
    """After a refused message, PostgreSQL takes nothing more until the savepoint is undone."""
    store = MessageStore(opened)
    store.write(deposit("d1"), COMMANDS)
    savepoint = opened.begin_nested()
    with pytest.raises(ExpectedVersionError):
        store.write(deposit("d2"), COMMANDS, expected_version=7)
    with pytest.raises(StoreError, match="current transaction is aborted"):
        store.write(deposit("d2"), COMMANDS)
    savepoint.rollback()
    store.write(deposit("d3"), COMMANDS)
    opened.commit()
    with pytest.raises(ExpectedVersionError):
        store.write(deposit("d4"), COMMANDS, expected_version=7)
    opened.rollback()
    assert found(connection) == (["d1", "d3"], [])


def test_a_session_says_itself_that_it_can_begin_nothing(engine):
    """Without autobegin, or after a failed flush, the error is SQLAlchemy's."""
    with Session(engine, autobegin=False) as session:
        store = MessageStore(session)
        with pytest.raises(InvalidRequestError, match="Autobegin is disabled"):
            store.write(deposit("d1"), COMMANDS)
        with session.begin():
            assert store.write(deposit("d1"), COMMANDS) == 0
    with Session(engine) as session:
        session.add(Account(id="123"))
        with pytest.raises(IntegrityError):
            session.flush()
        with pytest.raises(PendingRollbackError):
            MessageStore(session).write(deposit("d2"), COMMANDS)
    own = engine.connect()
    own.close()
    with pytest.raises(ResourceClosedError):
        MessageStore(own).write(deposit("d2"), COMMANDS)


def test_each_thread_has_its_own_session(engine, connection):
    """A store on a scoped session writes in the session of the thread that calls."""
    sessions = scoped_session(sessionmaker(engine))
    store = MessageStore(sessions)
    store.write(deposit("d1"), COMMANDS)

    def other():
        MessageStore(sessions).write(deposit("d2"), "other:command-1")
        store.write(deposit("d3"), "other:command-1")
        sessions.commit()
        sessions.remove()

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    sessions.rollback()
    sessions.remove()
    assert found(connection) == (["d2", "d3"], [])


def state_of(raw):
    """Return the settings of a psycopg connection that others may have set."""
    loaders = [raw.adapters.get_loader(raw.adapters.types[t].oid, 0) for t in ("text", "jsonb")]
    dumpers = [raw.adapters.get_dumper(kind, "s") for kind in (str, int, Jsonb)]
    settings = (raw.autocommit, raw.isolation_level, raw.prepare_threshold, raw.read_only)
    return settings, raw.row_factory, raw.cursor_factory, loaders, dumpers


class Shouting(StrDumper):
    """A dumper of a program, which the store does not use."""

    def dump(self, obj):
        return super().dump(obj.upper())


class Hidden(TextLoader):
    """A loader of a program, which the store does not use."""

    def load(self, data):
        return "hidden"


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_set_on_the_connection_does_not_matter_and_stays(database_url, connection, fails):
    """The adapters, rows, cursors and JSON functions of a program are not used, and not changed."""

    def refuse(*_):
        raise AssertionError

    engine = create_engine(
        PSYCOPG,
        connect_args=settings(database_url),
        json_serializer=refuse,
        json_deserializer=refuse,
    )

    with engine.connect() as own:
        raw = own.connection.driver_connection
        raw.row_factory = psycopg.rows.dict_row
        raw.prepare_threshold = 1
        raw.adapters.register_dumper(str, Shouting)
        for name in ("text", "varchar"):
            raw.adapters.register_loader(name, Hidden)
        before = state_of(raw)
        store = MessageStore(own)
        for n in range(3):
            assert store.write([deposit(f"d{n}"), withdraw(f"w{n}")], COMMANDS) == 2 * n + 1
        if fails:
            with pytest.raises(ExpectedVersionError):
                store.write(deposit(), COMMANDS, expected_version=0)
            own.rollback()
        assert state_of(raw) == before
        if not fails:
            assert store.last_message(COMMANDS).decode(type(withdraw())) == withdraw("w2")
        own.commit()
    engine.dispose()
    ids = connection.execute("SELECT data->>'depositId' FROM message_store.messages").fetchall()
    assert len(ids) == (0 if fails else 6)


# What is refused


def refused(make):
    """Return the text of the error with which a source is refused, which is one line."""
    with pytest.raises(StoreError) as refusal:
        make()
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


AFTER_COMMIT = (
    "send after the commit with open(database_url), and again if it may have failed: a command "
    "takes effect once"
)
SYNC = (
    "A MessageStore takes a psycopg Connection or ConnectionPool, a SQLAlchemy Connection or "
    "Session, or a Django connection, not a "
)
ASYNC = (
    "An AsyncMessageStore takes a psycopg AsyncConnection or AsyncConnectionPool, or a SQLAlchemy "
    "AsyncConnection or AsyncSession, not a "
)


@pytest.mark.parametrize("driver", ["psycopg2", "asyncpg"])
def test_an_engine_of_another_driver_is_refused(driver):
    """psycopg2 and asyncpg are refused with the URL to use."""
    expected = (
        f"The engine's driver is {driver}, and a message is written on a connection of psycopg 3; "
        f"make the engine with postgresql+psycopg://"
    )
    if driver == "asyncpg":
        engine = create_async_engine("postgresql+asyncpg://")
        assert refused(lambda: AsyncMessageStore(AsyncSession(engine))) == expected
        assert refused(lambda: AsyncMessageStore(engine.connect())) == expected
    else:
        engine = create_engine("postgresql+psycopg2://")
        assert refused(lambda: MessageStore(Session(engine))) == expected
        scoped = scoped_session(sessionmaker(engine))
        assert refused(lambda: MessageStore(scoped).write(deposit(), COMMANDS)) == expected


def test_a_connection_of_another_driver_is_refused(database_url):
    """The connections of psycopg2 and asyncpg themselves are refused too."""
    own = psycopg2.connect(database_url)
    assert refused(lambda: MessageStore(own)) == (
        f"{SYNC}connection; connect with psycopg 3 instead of psycopg2"
    )
    own.close()

    @in_loop
    async def refuse():
        known = settings(database_url)
        same = {name: known.get(name) for name in ("user", "password", "host", "port")}
        own = await asyncpg.connect(database=known["dbname"], **same)
        assert refused(lambda: AsyncMessageStore(own)) == (
            f"{ASYNC}Connection; connect with psycopg 3 instead of asyncpg"
        )
        await own.close()

    refuse()


def test_another_database_is_refused():
    """An engine or a connection of another database cannot commit the message."""
    engine = create_engine("sqlite://")
    expected = (
        f"The message store is in PostgreSQL, and cannot be part of a transaction of sqlite; "
        f"{AFTER_COMMIT}"
    )
    with engine.connect() as own:
        assert refused(lambda: MessageStore(own)) == expected
    assert refused(lambda: MessageStore(Session(engine))) == expected
    assert refused(lambda: MessageStore(sqlite3.connect(":memory:"))) == (
        f"{SYNC}Connection; {AFTER_COMMIT}"
    )


def test_a_session_of_several_engines_is_refused(engine, database_url):
    """A session that is bound to several engines has several transactions."""
    other = create_engine(PSYCOPG, connect_args=settings(database_url))
    session = Session(engine, binds={Receipt: other})
    expected = (
        "The session is bound to 2 engines, which do not commit together; give the store a "
        "session, or a connection, of the one that the message store is in"
    )
    assert refused(lambda: MessageStore(session)) == expected
    scoped = scoped_session(sessionmaker(engine, binds={Receipt: other}))
    assert refused(lambda: MessageStore(scoped).write(deposit(), COMMANDS)) == expected
    scoped.remove()
    with Session(engine, binds={Receipt: engine}) as one:
        assert MessageStore(one).write(deposit(), COMMANDS) == 0


def test_an_engine_or_a_maker_of_sessions_is_refused(engine):
    """What has no transaction is refused with what has one."""
    way_out = "give one of its sessions or connections, which has a transaction"
    assert refused(lambda: MessageStore(engine)) == f"{SYNC}Engine; {way_out}"
    assert refused(lambda: MessageStore(sessionmaker(engine))) == f"{SYNC}sessionmaker; {way_out}"
    other = create_async_engine(PSYCOPG)
    assert refused(lambda: AsyncMessageStore(other)) == f"{ASYNC}AsyncEngine; {way_out}"
    maker = async_sessionmaker(other)
    assert refused(lambda: AsyncMessageStore(maker)) == f"{ASYNC}async_sessionmaker; {way_out}"


def test_a_session_of_the_other_kind_is_refused(engine):
    """Each client names the one that takes the session."""
    session, other = Session(engine), AsyncSession(create_async_engine(PSYCOPG))
    assert refused(lambda: AsyncMessageStore(session)) == (
        f"{ASYNC}Session; MessageStore takes those"
    )
    assert refused(lambda: MessageStore(other)) == (
        f"{SYNC}AsyncSession; AsyncMessageStore takes those"
    )


def test_a_session_does_not_gather():
    """Writes that are part of a session's transaction cannot be gathered."""
    session = AsyncSession(create_async_engine(PSYCOPG))
    assert refused(lambda: AsyncMessageStore(session, gather=True)) == (
        "Writes on a connection of the caller's are part of its transaction, so they cannot be "
        "gathered; give an AsyncConnectionPool, or leave gather out"
    )


WAITING = (
    "Waiting for an outcome in a transaction could wait for ever: what is written in it is handled "
    "only after its commit; commit first, and wait with a store from open(), or on a connection in "
    "autocommit"
)


def test_waiting_for_an_outcome_is_refused(opened):
    """In a transaction a store does not wait for what can only follow its commit."""
    from bank import account

    store = MessageStore(opened)
    store.send(deposit("d1"), account)
    assert refused(lambda: store.wait_for(deposit("d1"), account)) == WAITING
    assert store.outcome(deposit("d1"), account).state == "pending"


AUTOCOMMIT = (
    "The connection is in autocommit, so the message would be committed by itself; send it in a "
    "transaction: Django's transaction.atomic(), psycopg's connection.transaction(), or "
    "SQLAlchemy's without the isolation level AUTOCOMMIT"
)


def test_the_isolation_level_autocommit_is_refused(engine, connection):
    """With AUTOCOMMIT there is no transaction to write in; what reads may go on."""
    with Session(engine.execution_options(isolation_level="AUTOCOMMIT")) as session:
        store = MessageStore(session)
        assert refused(lambda: store.write(deposit(), COMMANDS)) == AUTOCOMMIT
        assert refused(lambda: store.write(deposit(), COMMANDS, after="1h")) == AUTOCOMMIT
        assert store.stream_version(COMMANDS) == -1
    assert found(connection) == ([], [])


def test_a_transaction_of_two_phases_is_refused(engine):
    """PostgreSQL prepares no transaction that has sent a notice."""
    session = Session(engine, twophase=True)
    assert refused(lambda: MessageStore(session)) == (
        "PostgreSQL cannot prepare a transaction that sends notices, as each message does; make "
        "the session without twophase=True"
    )


# In an event loop


@pytest.fixture(params=["session", "scoped session", "connection"], name="kind")
def _kind(request):
    return request.param


async def open_async(engine, kind):
    """Return what has a transaction, opened."""
    if kind == "connection":
        return await engine.connect()
    if kind == "session":
        return AsyncSession(engine)
    return async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: 1)


async def end(opened):
    await (opened.remove() if isinstance(opened, async_scoped_session) else opened.close())


@in_loop
async def test_an_async_transaction_is_committed_or_rolled_back(
    engine, database_url, connection, kind
):
    """In an event loop too, messages are committed with rows, or rolled back, or to a savepoint."""
    own = create_async_engine(PSYCOPG, connect_args=settings(database_url))
    opened = await open_async(own, kind)
    store = AsyncMessageStore(opened)
    assert await store.write(deposit("d1"), COMMANDS) == 0
    await opened.execute(receipt())
    savepoint = await opened.begin_nested()
    await store.write(deposit("d2"), COMMANDS)
    await savepoint.rollback()
    assert await store.write(deposit("d3"), COMMANDS) == 1
    assert found(connection) == ([], [])
    await opened.commit()
    await store.write(deposit("d4"), COMMANDS)
    await opened.rollback()
    await store.write(deposit("d5"), COMMANDS)
    await opened.commit()
    await opened.execute(receipt("r2", "nobody"))
    await store.write(deposit("d6"), COMMANDS)
    with pytest.raises(IntegrityError, match="receipts_account_fkey"):
        await opened.commit()
    await opened.rollback()
    with pytest.raises(ExpectedVersionError):
        await store.write(deposit("d7"), COMMANDS, expected_version=7)
    await end(opened)
    await own.dispose()
    assert found(connection) == (["d1", "d3", "d5"], ["r1"])


@in_loop
async def test_async_refusals_come_with_the_first_write(engine, database_url, kind):
    """AUTOCOMMIT and waiting are refused in an event loop too."""
    from bank import account

    own = create_async_engine(PSYCOPG, connect_args=settings(database_url))
    opened = await open_async(own, kind)
    store = AsyncMessageStore(opened)
    with pytest.raises(StoreError) as refusal:
        await store.wait_for(deposit("d1"), account)
    assert str(refusal.value) == WAITING
    await end(opened)
    opened = await open_async(own.execution_options(isolation_level="AUTOCOMMIT"), kind)
    with pytest.raises(StoreError) as refusal:
        await AsyncMessageStore(opened).write(deposit(), COMMANDS)
    assert str(refusal.value) == AUTOCOMMIT
    await end(opened)
    other = create_async_engine(PSYCOPG, connect_args=settings(database_url))
    session = AsyncSession(own, binds={Receipt: other})
    assert "bound to 2 engines" in refused(lambda: AsyncMessageStore(session))
    await own.dispose()


# Imports


def test_neither_sqlalchemy_nor_django_is_imported(database_url):
    """A program that uses psycopg's connections imports nothing of SQLAlchemy and Django."""
    program = """
import json, sys
import psycopg
from reservation import MessageStore, Component
from reservation.errors import StoreError
with psycopg.connect(sys.argv[1]) as connection:
    MessageStore(connection).stream_version("account:command-1")
try:
    MessageStore(object())
except StoreError:
    pass
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""
    imported = json.loads(
        subprocess.run(
            [sys.executable, "-c", program, database_url],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    )
    assert {"sqlalchemy", "django", "greenlet", "asgiref"} & {*imported} == set()
    assert {"reservation", "psycopg"} < {*imported}
