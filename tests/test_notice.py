"""Notice of new messages: none is lost, none is given too often; without it there is polling."""

import json
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from psycopg import conninfo, sql

from bank import account
from consumers.group import heartbeat
from consumers.loop.consumer import Consumer
from consumers.runtime.stopping import Stop
from reservation import Component, MessageStore
from reservation.errors import LockTimeoutError, SchemaError, StoreError
from reservation.postgres.connection import connect
from reservation.store import notifications
from reservation.store.notifications import Notices, notices_given, set_notices
from reservation.store.schema.install import attach, detach
from reservation.store.schema.roles import grant
from tests.bank import address, event_types, session
from tests.controls import COMMANDS, deposit, open_
from tests.message_db import imitate
from tests.processes import PATIENCE, Started, run_cli

CATEGORY = "thing"


@dataclass
class Begin:
    """Starts a stream."""

    slow_id: str


class Begun(Begin):
    """The stream has begun."""


# Long enough that a test which has to wait for it fails.
NEVER = 120.0


@pytest.fixture
def given(connection):
    """Switch notices on, and give the connection."""
    set_notices(connection, True)
    return connection


@pytest.fixture
def open_connection(database_url):
    """Give a function that opens connections, which are closed after the test."""
    opened = []

    def open_one(**options):
        opened.append(connect(conninfo.make_conninfo(database_url, **options), autocommit=True))
        return opened[-1]

    yield open_one
    for connection in opened:
        connection.close()


@pytest.fixture(autouse=True)
def slow_machine(monkeypatch):
    """Give up no connection because the machine is slow."""
    monkeypatch.setattr(notifications, "CONNECT_TIMEOUT", int(PATIENCE))


@pytest.fixture
def waiting(connection, database_url):
    """Give a wait for the category that a second look has armed; no consumer reads it."""
    set_notices(connection, True)
    with (
        connect(database_url, autocommit=True) as reader,
        Notices(reader, database_url, CATEGORY) as notices,
    ):
        assert notices.wait(0)
        yield notices


@pytest.fixture
def listener(given, open_connection):
    """Give a function that listens to a category, and counts its notifications."""

    def listen(category=CATEGORY, *, waits=True):
        connection = open_connection()
        channel = connection.execute("SELECT reservation.notice_channel(%s)", [category])
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel.fetchone()[0])))
        if waits:
            connection.execute("SELECT reservation.expect_notice(%s)", [category])

        def count():
            connection.execute("SELECT")  # the server sends what it has with the answer
            return len(list(connection.notifies(timeout=0)))

        return count

    return listen


def insert(connection, stream_name="thing-1", position=None):
    """Write one message as a client does that takes no lock of ours."""
    connection.execute(
        "INSERT INTO message_store.messages (stream_name, position, type) VALUES (%s, %s, 'T')",
        [stream_name, uuid.uuid4().int >> 66 if position is None else position],
    )


def insert_many(connection, stream_name="thing-1"):
    """Write many messages in one statement, to one category."""
    connection.execute(
        "INSERT INTO message_store.messages (stream_name, position, type) "
        "SELECT %s, n + %s, 'T' FROM generate_series(1, 100) AS n",
        [stream_name, uuid.uuid4().int >> 66],
    )


def call(connection):
    """Write one message as the clients of Message DB do."""
    connection.execute(
        "SELECT message_store.write_message(gen_random_uuid()::varchar, 'thing-1', 'T', '{}')"
    )


def copy(connection):
    """Write one message with COPY."""
    columns = "COPY message_store.messages (stream_name, position, type) FROM STDIN"
    with connection.cursor().copy(columns) as rows:
        rows.write_row(("thing-1", uuid.uuid4().int >> 66, "T"))


def ours(connection):
    """Write one message with our client."""
    MessageStore(connection).write(deposit(str(uuid.uuid4())), "thing-1")


def rolled_back_first(connection):
    """Write one message after another that a savepoint takes back."""
    with connection.transaction():
        connection.execute("SAVEPOINT before")
        insert(connection)
        connection.execute("ROLLBACK TO SAVEPOINT before")
        insert(connection)


WRITERS = [insert, insert_many, call, copy, ours, rolled_back_first]


@pytest.mark.parametrize("write", WRITERS)
def test_every_writer_wakes_waiting_readers(waiting, connection, write):
    """Our functions, those of Message DB and bare statements all wake a waiting reader."""
    write(connection)
    assert waiting.wait(NEVER)


@pytest.mark.parametrize("write", [insert, call])
def test_a_message_written_before_the_wait_is_found_first(
    given, database_url, open_connection, write
):
    """A message written before the wait is found before the reader starts to wait."""
    writer, reader = open_connection(), open_connection()
    with Notices(reader, database_url, CATEGORY) as notices:
        with writer.transaction():
            write(writer)
            assert not notices.wait(NEVER, poll=0)
            assert notices.missing is None
        assert notices.wait(NEVER)
        assert reader.execute("SELECT count(*) FROM message_store.messages").fetchone() == (1,)
        assert not notices.wait(0)


@pytest.mark.parametrize("writers", [1, 3])
@pytest.mark.parametrize("waiters", [1, 2])
def test_no_notice_is_lost_however_writing_and_waiting_meet(given, database_url, writers, waiters):
    """No notice is lost, however writing and waiting overlap."""
    rounds, turns = 60, threading.Condition()
    seen = [[0] * writers for _ in range(waiters)]
    late = []

    def look(connection, waiter):
        found = connection.execute(
            "SELECT type, count(*) FROM message_store.messages GROUP BY type"
        ).fetchall()
        with turns:
            before, seen[waiter] = seen[waiter], [0] * writers
            for kind, count in found:
                seen[waiter][int(kind)] = count
            turns.notify_all()
            return seen[waiter] != before

    def wait(waiter):
        with (
            connect(database_url, autocommit=True) as connection,
            Notices(connection, database_url, CATEGORY) as notices,
        ):
            while sum(seen[waiter]) < rounds * writers and not late:
                if look(connection, waiter):
                    notices.leave()
                else:
                    start = time.monotonic()
                    notices.wait(NEVER / 4)
                    if time.monotonic() - start > NEVER / 8:
                        late.append(waiter)

    def write(writer):
        with connect(database_url, autocommit=True) as connection:
            for n in range(1, rounds + 1):
                connection.execute(
                    "INSERT INTO message_store.messages (stream_name, position, type) "
                    "VALUES (%s, %s, %s)",
                    [f"{CATEGORY}-{writer}", n, str(writer)],
                )
                with turns:
                    if not turns.wait_for(
                        lambda n=n: all(partition[writer] >= n for partition in seen),
                        timeout=PATIENCE,
                    ):
                        late.append(writer)
                        return

    with ThreadPoolExecutor(writers + waiters) as threads:
        running = [threads.submit(wait, n) for n in range(waiters)]
        running += [threads.submit(write, n) for n in range(writers)]
        for process in running:
            process.result(NEVER)
    assert late == []


def test_a_transaction_gives_one_notice_for_each_category(listener, connection):
    """A transaction sends one notice per category, however many statements it has."""
    things, others = listener(), listener("other")
    with connection.transaction():
        insert_many(connection)
        insert_many(connection, "thing:kind-1")  # another category
        with connection.transaction():
            insert(connection)
        insert(connection, "other-1")
    assert (things(), others()) == (1, 1)


def test_a_transaction_that_is_rolled_back_gives_no_notice(listener, connection):
    """A transaction that is rolled back sends no notice."""
    count = listener()
    with connection.transaction(force_rollback=True):
        insert(connection)
    assert count() == 0


def test_a_writer_that_finds_nobody_waiting_notifies_nobody(listener, connection):
    """Without a waiting reader a writer does not call NOTIFY, which is expensive."""
    count, other = listener(waits=False), listener("other")
    insert(connection)
    assert (count(), other()) == (0, 0)


def test_a_reader_that_has_left_is_not_notified(waiting, listener, connection):
    """A reader that has left is not notified."""
    count = listener(waits=False)
    insert(connection)
    assert waiting.wait(NEVER)
    waiting.leave()
    insert(connection)
    assert count() == 1


def test_a_reader_that_finds_what_it_was_woken_for_goes_on_asking(waiting, connection):
    """A reader that was woken, finds its message and waits again needs no further look."""
    for _ in range(3):
        insert(connection)
        assert waiting.wait(NEVER)
        assert waiting.found()
    insert(connection)
    assert waiting.wait(NEVER)


def test_a_reader_that_finds_more_than_it_was_woken_for_leaves(waiting, listener, connection):
    """A reader that finds more before it waits again, or without a notice, is not notified."""
    count = listener(waits=False)
    insert(connection)
    assert waiting.wait(NEVER)
    assert waiting.found()
    assert not waiting.found()
    insert(connection)
    assert count() == 1
    assert waiting.wait(0)  # asks again
    assert not waiting.found()
    insert(connection)
    assert count() == 0


def test_what_is_written_after_the_look_that_a_notice_caused_wakes_again(
    waiting, connection, open_connection
):
    """What a look could not see yet gives notice, even if it was written before the look."""
    writer = open_connection()
    with writer.transaction():
        insert(writer)
        insert(connection)
        assert waiting.wait(NEVER)
        assert connection.execute("SELECT count(*) FROM message_store.messages").fetchone() == (1,)
        assert waiting.found()
        assert not waiting.wait(0)
    assert waiting.wait(NEVER)
    assert connection.execute("SELECT count(*) FROM message_store.messages").fetchone() == (2,)


def test_another_thread_may_leave(waiting, listener, connection):
    """A thread that looks after a reader whose work takes long can leave for it."""
    count = listener(waits=False)
    insert(connection)
    assert waiting.wait(NEVER)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(waiting.leave).result(PATIENCE)
    insert(connection)
    assert count() == 1
    assert not waiting.found()
    assert waiting.wait(0)


def test_several_wait_for_one_category(given, database_url, connection):
    """Each of several readers of one category is notified."""
    with connect(database_url, autocommit=True) as reader:
        every = [Notices(reader, database_url, CATEGORY) for _ in range(3)]
        assert [notices.wait(0) for notices in every] == [True] * 3
        insert(connection)
        assert [notices.wait(NEVER) for notices in every] == [True] * 3
        every[0].leave()
        insert(connection)
        assert [notices.wait(NEVER) for notices in every[1:]] == [True] * 2
        for notices in every:
            notices.close()


def test_another_category_wakes_nobody(waiting, connection):
    """A message of another category wakes no reader."""
    insert(connection, "thing:command-1")
    insert(connection, "thin-1")
    assert not waiting.wait(0)


def test_a_category_that_shares_the_lock_is_notified_of_its_own_messages_only(
    waiting, connection, database_url
):
    """Categories that share a lock are notified of their own messages only; none is lost."""
    (other,) = connection.execute(
        "SELECT 'other' || n FROM generate_series(1, 10000) AS n "
        "WHERE reservation.notice_lock('other' || n, 0) = reservation.notice_lock(%s, 0) LIMIT 1",
        [CATEGORY],
    ).fetchone()
    with Notices(connection, database_url, other) as notices:
        assert notices.wait(0)
        insert(connection, f"{other}-1")
        assert notices.wait(NEVER)
        assert not waiting.wait(0)
        insert(connection)
        assert waiting.wait(NEVER)
        assert not notices.wait(0)


def test_a_transaction_of_many_categories_takes_few_locks(given, connection):
    """A transaction of many categories does not exhaust the server's locks."""
    with connection.transaction():
        connection.execute(
            "INSERT INTO message_store.messages (stream_name, position, type) "
            "SELECT 'c' || n || '-1', 0, 'T' FROM generate_series(1, 20000) AS n"
        )
        ((held,),) = connection.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 "
            "AND pid = pg_backend_pid()"
        ).fetchall()
    assert 0 < held <= 256


def test_writers_wait_neither_for_each_other_nor_for_readers(given, open_connection, waiting):
    """Writers wait neither for each other nor for readers: the trigger only tries its lock."""
    first, other = (open_connection(options="-c lock_timeout=1") for _ in range(2))
    with first.transaction():
        insert(first)
        with other.transaction():
            insert(other)
            insert(first)
    waiting.leave()
    with first.transaction():
        insert(first)
        with other.transaction():
            insert(other)
    assert waiting.missing is None


def test_concurrent_writers_are_not_mistaken_for_readers(listener, open_connection):
    """Concurrent writers of a category are not mistaken for waiting readers."""
    count = listener(waits=False)
    first, other = open_connection(), open_connection()
    while (first.info.backend_pid - other.info.backend_pid) % 16 == 0:
        other = open_connection()
    with first.transaction():
        insert(first)
        insert(other)
    assert count() == 0


def test_a_delayed_wait_holds_no_lock(given, open_connection):
    """A reader whose wait is delayed holds no lock that would make writers notify."""
    writer, waiter = open_connection(), open_connection()
    with writer.transaction():
        insert(writer)
        held_up = waiter.execute("SELECT reservation.expect_notice(%s)", [CATEGORY])
        assert held_up.fetchone() == (False,)
        held = waiter.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
        )
        assert held.fetchone() == (0,)


def test_a_session_switches_its_own_notices_off(waiting, connection):
    """A session can switch its own notices off, as for a bulk load; others still send them."""
    connection.execute("SET reservation.notices = off")
    insert(connection)
    assert not waiting.wait(0)
    connection.execute("RESET reservation.notices")
    insert(connection)
    assert waiting.wait(NEVER)


@pytest.mark.parametrize("right", ["sender", "insert"])
def test_writers_need_no_rights_for_it(waiting, connection, open_connection, right):
    """Writers without rights on our schema send notices too."""
    role = f"notice_{uuid.uuid4().hex}"
    writer = open_connection()
    connection.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(role)))
    try:
        if right == "sender":
            grant(connection, "sender", role, [CATEGORY])
        else:
            for statement in (
                "GRANT USAGE ON SCHEMA message_store TO {}",
                "GRANT INSERT ON message_store.messages TO {}",
                "GRANT USAGE ON SEQUENCE message_store.messages_global_position_seq TO {}",
            ):
                connection.execute(sql.SQL(statement).format(sql.Identifier(role)))
        writer.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
        (ours if right == "sender" else insert)(writer)
        assert waiting.wait(NEVER)
    finally:
        writer.close()
        connection.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role)))
        connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def test_a_consumer_role_may_wait(given, connection, database_url, open_connection):
    """The grants of `store grants consumer` suffice to wait for notices."""
    role = f"notice_{uuid.uuid4().hex}"
    grant(connection, "consumer", role, [])
    try:
        address = conninfo.make_conninfo(database_url, options=f"-c role={role}")
        reader = open_connection(options=f"-c role={role}")
        with Notices(reader, address, CATEGORY) as notices:
            assert notices.wait(0)
            insert(connection)
            assert notices.wait(NEVER)
    finally:
        connection.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role)))
        connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def test_a_stop_ends_the_wait(waiting):
    """A stop from another thread or a signal ends the wait at once."""
    stop = Stop()
    with ThreadPoolExecutor(1) as thread:
        waited = thread.submit(waiting.wait, NEVER, pause=stop)
        stop.request()
        assert waited.result(PATIENCE) is False
    assert stop.requested


def test_a_lost_connection_makes_it_poll_and_then_connect_again(waiting, connection, monkeypatch):
    """After a lost connection the reader polls until it reconnects, and misses nothing."""
    connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND query LIKE '%expect_notice%' "
        "AND pid <> pg_backend_pid()"
    )
    notified = False
    while (
        waiting.missing is None
    ):  # the server's last words can come before the end, and end a wait
        notified = waiting.wait(NEVER)
    assert notified  # a message may have been missed
    assert "lost" in waiting.missing
    insert(connection)
    assert not waiting.wait(NEVER, poll=0)
    monkeypatch.setattr(waiting, "_try_at", 0)
    assert waiting.wait(NEVER)
    assert waiting.missing is None
    insert(connection)
    assert waiting.wait(NEVER)


def test_a_database_that_takes_no_more_connections_makes_it_poll(
    given, database_url, open_connection, connection
):
    """Without a free connection for notices the reader polls and logs why."""
    reader = open_connection()
    with Notices(reader, conninfo.make_conninfo(database_url, user="nobody_"), CATEGORY) as notices:
        assert not notices.wait(NEVER, poll=0)
        assert "Cannot reach the database" in notices.missing


def test_without_the_trigger_it_polls_and_opens_no_connection(connection, database_url):
    """While notices are off, the reader polls and opens no connection."""
    with Notices(connection, database_url, CATEGORY) as notices:
        assert not notices.wait(NEVER, poll=0)
        assert notices.missing == "they are off"
    assert connection.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    ).fetchone() == (1,)


def test_switching_is_seen_while_waiting(connection, database_url, monkeypatch):
    """A waiting reader notices that notices were switched on or off."""
    monkeypatch.setattr(notifications, "RETRY", 0)
    with Notices(connection, database_url, CATEGORY) as notices:
        assert not notices.wait(NEVER, poll=0)
        assert set_notices(connection, True)
        assert notices.wait(NEVER)
        assert set_notices(connection, False)
        insert(connection)
        assert not notices.wait(0)
        notices.leave()
        assert not notices.wait(NEVER, poll=0)
        assert notices.missing == "they are off"


def test_switching_reports_whether_it_changed_anything(connection):
    """Switching reports whether it changed anything, and can be repeated."""
    assert not notices_given(connection)
    assert [set_notices(connection, on) for on in (False, True, True)] == [False, True, False]
    assert notices_given(connection)
    connection.execute("ALTER TABLE message_store.messages DISABLE TRIGGER reservation_notice")
    assert not notices_given(connection)
    assert set_notices(connection, True)
    assert set_notices(connection, False)
    assert connection.execute(
        "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'message_store.messages'::regclass"
    ).fetchone() == (0,)


def test_switching_gives_up_where_a_writer_does_not_end(connection, open_connection, monkeypatch):
    """Switching gives up if a writer does not end, and the error says what to do."""
    writer = open_connection()
    monkeypatch.setattr(notifications, "LOCK_TIMEOUT", "10ms")
    with writer.transaction():
        insert(writer)
        with pytest.raises(LockTimeoutError, match="pg_stat_activity"):
            set_notices(connection, True)
    assert set_notices(connection, True)


def test_switching_needs_the_schemas(empty_database_url):
    """Switching needs the schemas, and the error names the command that creates them."""
    with (
        connect(empty_database_url, autocommit=True) as connection,
        pytest.raises(SchemaError, match="reservation store install"),
    ):
        set_notices(connection, True)


def test_switching_needs_the_owner_of_the_log(connection, open_connection):
    """Only the owner of the log can switch notices."""
    role = f"notice_{uuid.uuid4().hex}"
    grant(connection, "consumer", role, [])
    try:
        with pytest.raises(StoreError, match="permission denied"):
            set_notices(open_connection(options=f"-c role={role}"), True)
    finally:
        connection.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role)))
        connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def test_a_store_of_message_db_gives_notice_until_it_is_detached(empty_database_url):
    """On a store of Message DB notices work until it is detached."""
    with connect(empty_database_url, autocommit=True) as connection:
        imitate(connection)
        attach(connection)
        assert set_notices(connection, True)
        with Notices(connection, empty_database_url, CATEGORY) as notices:
            assert notices.wait(0)
            with connect(empty_database_url, autocommit=True) as writer:
                writer.execute("SET search_path = message_store")
                writer.execute(
                    "SELECT write_message(gen_random_uuid()::varchar, 'thing-1', 'T', '{}')"
                )
            assert notices.wait(NEVER)
        detached = detach(connection)
        assert detached.dependents == ("trigger reservation_notice on message_store.messages",)
        assert not notices_given(connection)
        insert(connection)


def test_the_command_switches_notices_and_prints_the_result(database_url):
    """`store notices` switches notices and prints the result, as text and as JSON."""
    env = {"RESERVATION_DATABASE_URL": database_url}
    printed = [
        run_cli("store", "notices", *arguments, env=env).stdout
        for arguments in ([], ["on"], ["on"], ["--json"], ["off"], ["off"])
    ]
    assert printed[:3] == ["notices: off\n", "notices: switched on\n", "notices: were on\n"]
    assert json.loads(printed[3]) == {"notices": "on", "changed": False}
    assert printed[4:] == ["notices: switched off\n", "notices: were off\n"]


def test_consumers_are_woken_up(given, store, database_url, monkeypatch):
    """Both consumers handle messages by notice alone, without polling."""
    for name in ("loop.consumer.POLL", "loop.consumer.TURN", "group.membership.TURN"):
        monkeypatch.setattr(f"consumers.{name}", NEVER)
    stops, threads = [], []
    try:
        for category in ("account:command", "accountTransaction"):
            stop = Stop()
            ready = threading.Event()
            stops.append(stop)
            threads.append(
                threading.Thread(
                    target=_consume, args=(database_url, category, stop, ready), daemon=True
                )
            )
            threads[-1].start()
            assert ready.wait(PATIENCE)
        store.write(open_(), COMMANDS)
        for n in range(20):
            store.write(deposit(f"d{n}"), COMMANDS)
            _wait_for(given, "account-123", n + 2)
    finally:
        for stop in stops:
            stop.request()
        for thread in threads:
            thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    assert event_types(store) == ["Opened"] + ["Deposited"] * 20


def test_a_batch_that_takes_long_asks_for_no_notices(given, store, listener, monkeypatch):
    """While a handler takes long, writers notify nobody, so the server's queue does not fill."""
    monkeypatch.setattr("consumers.group.membership.TURN", NEVER)
    component, began, left, go_on = (
        Component("slow", id="slow_id"),
        *(threading.Event() for _ in range(3)),
    )
    leave = Notices.leave

    def noted(notices):
        leave(notices)
        if began.is_set():
            left.set()

    monkeypatch.setattr(Notices, "leave", noted)

    @component.initiate(Begin)
    def begin(command, context):
        began.set()
        assert go_on.wait(PATIENCE)
        return context.follow(command, Begun)

    stop, ready, count = (
        Stop(takes_signals=False),
        threading.Event(),
        listener("slow:command", waits=False),
    )
    arguments = (address(given), "slow:command", stop, ready, component)
    thread = threading.Thread(target=_consume, args=arguments, daemon=True)
    thread.start()
    try:
        assert ready.wait(PATIENCE)
        monkeypatch.setattr(heartbeat, "INTERVAL", 0.01)  # not before it waits, or it would leave
        store.write(Begin("1"), "slow:command-1")
        assert began.wait(PATIENCE)
        assert left.wait(PATIENCE)
        assert count() == 1
        store.write(Begin("2"), "slow:command-2")
        assert count() == 0
        go_on.set()
        _wait_for(given, "slow-2", 1)
    finally:
        go_on.set()
        stop.request()
        thread.join(PATIENCE)
    assert not thread.is_alive()


def test_the_processes_of_a_component_wait_for_notice(given, store, database_url):
    """`reservation start` uses notices and can be stopped while it waits."""
    with Started(database_url) as started:
        for category in ("account:command", "accountTransaction"):
            started.wait_for("notice_awaited", category=category)
        store.write([open_(), deposit()], COMMANDS)
        started.wait_for("batch_committed", category="accountTransaction", handled=1)
        assert started.stop() == 0


class _Ready:
    """A wait that reports when it waits for notice."""

    def __init__(self, notices, ready):
        self._notices, self._ready = notices, ready

    def __getattr__(self, name):
        return getattr(self._notices, name)

    def wait(self, *arguments, **options):
        if self._notices.missing is None:
            self._ready.set()
        return self._notices.wait(*arguments, **options)


def _consume(database_url, category, stop, ready, component=account):
    with (
        session(database_url) as opened,
        Notices(opened.connection, database_url, category) as notices,
    ):
        Consumer(
            opened,
            component,
            category,
            notices=_Ready(notices, ready),
        ).run(stop)


def _wait_for(connection, stream_name, count):
    """Wait in the server until a stream has a number of messages."""
    connection.execute(
        sql.SQL(
            """
            DO $$
            BEGIN
              FOR n IN 1..6000 LOOP
                EXIT WHEN {} <= (SELECT count(*) FROM message_store.messages
                                 WHERE stream_name = {});
                PERFORM pg_sleep(0.005);
              END LOOP;
            END $$
            """
        ).format(sql.Literal(count), sql.Literal(stream_name))
    )
