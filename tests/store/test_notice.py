"""Notice of new messages: none is lost, none is given too often; without it there is polling."""

import json
import secrets
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from psycopg import connect, conninfo, sql
from structlog.testing import capture_logs

from bank import account
from reservation import Component, MessageStore, Notices
from reservation.admin import attach, detach, install
from tests.apps.bank import event_types
from tests.store.builders import as_login, grant, new_role, run, store_command, switch_notices
from tests.support.consuming import hosted, until
from tests.support.controls import COMMANDS, deposit, open_
from tests.support.message_db import imitate
from tests.support.started import PATIENCE

__all__ = ["new_role"]  # a fixture

CATEGORY = "thing"

# Long enough that a test which has to wait for it fails.
NEVER = 120.0

# The locks of those who wait.
WAITING = """
SELECT count(*) FROM pg_locks
WHERE locktype = 'advisory' AND objsubid = 2 AND mode = 'ShareLock'
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


@dataclass
class Begin:
    """Starts a stream."""

    slow_id: str


class Begun(Begin):
    """The stream has begun."""


@pytest.fixture(name="url")
def _url(database_url):
    """Give the address of the store; connecting may take as long as a slow machine needs."""
    return conninfo.make_conninfo(database_url, connect_timeout=int(PATIENCE))


@pytest.fixture
def open_connection(url):
    """Give a function that opens connections, which are closed after the test."""
    opened = []

    def open_one(**options):
        opened.append(connect(conninfo.make_conninfo(url, **options), autocommit=True))
        return opened[-1]

    yield open_one
    for connection in opened:
        connection.close()


@pytest.fixture
def waiting(open_connection, url):
    """Give a wait for the category that a second look has armed; no consumer reads it."""
    with Notices(open_connection(), url, CATEGORY) as notices:
        assert notices.wait(0)
        yield notices


@pytest.fixture
def listener(open_connection):
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


@pytest.fixture
def later(monkeypatch):
    """Give a function that lets so many seconds pass for this process."""
    passed, monotonic = [0.0], time.monotonic

    def pass_(seconds):
        passed[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + passed[0])
    return pass_


def notices_given(connection):
    """Return whether the command says that notices are on."""
    return json.loads(store_command(connection, "notices", "--json").stdout)["notices"] == "on"


def insert(connection, stream_name="thing-1", position=None):
    """Write one message as a client does that takes no lock of ours."""
    connection.execute(
        "INSERT INTO message_store.messages (stream_name, position, type) VALUES (%s, %s, 'T')",
        [stream_name, secrets.randbits(60) if position is None else position],
    )


def insert_many(connection, stream_name="thing-1"):
    """Write many messages in one statement, to one category."""
    connection.execute(
        "INSERT INTO message_store.messages (stream_name, position, type) "
        "SELECT %s, n + %s, 'T' FROM generate_series(1, 100) AS n",
        [stream_name, secrets.randbits(60)],
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
        rows.write_row(("thing-1", secrets.randbits(60), "T"))


def ours(connection):
    """Write one message with our client."""
    MessageStore(connection).write(deposit(), "thing-1")


def rolled_back_first(connection):
    """Write one message after another that a savepoint takes back."""
    with connection.transaction():
        connection.execute("SAVEPOINT before")
        insert(connection)
        connection.execute("ROLLBACK TO SAVEPOINT before")
        insert(connection)


@pytest.mark.parametrize("write", [insert, insert_many, call, copy, ours, rolled_back_first])
def test_every_writer_wakes_waiting_readers(waiting, connection, write):
    """Our functions, those of Message DB and bare statements all wake a waiting reader."""
    write(connection)
    assert waiting.wait(NEVER)


def test_a_message_written_before_the_wait_is_found_first(url, open_connection):
    """A message written before the wait is found before the reader starts to wait."""
    writer, reader = open_connection(), open_connection()
    with Notices(reader, url, CATEGORY) as notices:
        with writer.transaction():
            insert(writer)
            assert not notices.wait(NEVER, poll=0)
            assert notices.missing is None
        assert notices.wait(NEVER)
        assert reader.execute("SELECT count(*) FROM message_store.messages").fetchone() == (1,)
        assert not notices.wait(0)


@pytest.mark.timeout(300)
def test_no_notice_is_lost_however_writing_and_waiting_meet(url):
    """Two readers and three writers: each writer goes on once every reader has seen its message."""
    readers, writers, rounds = 2, 3, 30
    turns = threading.Condition()
    seen = [[0] * writers for _ in range(readers)]

    def look(connection, reader):
        rows = connection.execute(
            "SELECT count(*) FILTER (WHERE type = n::text) FROM generate_series(0, %s) AS n "
            "LEFT JOIN message_store.messages ON true GROUP BY n ORDER BY n",
            [writers - 1],
        )
        with turns:
            before, seen[reader] = seen[reader], [count for (count,) in rows]
            turns.notify_all()
            return seen[reader] != before

    def wait(reader):
        with (
            connect(url, autocommit=True) as connection,
            Notices(connection, url, CATEGORY) as notices,
        ):
            while sum(seen[reader]) < rounds * writers:
                if look(connection, reader):
                    notices.leave()
                else:
                    notices.wait(2 * NEVER)  # longer than the writers' patience

    def write(writer):
        with connect(url, autocommit=True) as connection:
            for n in range(1, rounds + 1):
                connection.execute(
                    "INSERT INTO message_store.messages (stream_name, position, type) "
                    "VALUES (%s, %s, %s)",
                    [f"{CATEGORY}-{writer}", n, str(writer)],
                )
                with turns:
                    assert turns.wait_for(
                        lambda n=n: all(counts[writer] >= n for counts in seen), timeout=PATIENCE
                    )

    with ThreadPoolExecutor(readers + writers) as threads:
        running = [threads.submit(wait, n) for n in range(readers)]
        running += [threads.submit(write, n) for n in range(writers)]
        for one in running:
            one.result()


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


def test_several_wait_for_one_category(url, connection, open_connection):
    """Each of several readers of one category is notified."""
    every = [Notices(open_connection(), url, CATEGORY) for _ in range(3)]
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
    waiting, connection, url
):
    """Categories that share a lock are notified of their own messages only; none is lost."""
    (other,) = connection.execute(
        "SELECT 'other' || n FROM generate_series(1, 10000) AS n "
        "WHERE reservation.notice_lock('other' || n, 0) = reservation.notice_lock(%s, 0) LIMIT 1",
        [CATEGORY],
    ).fetchone()
    with Notices(connection, url, other) as notices:
        assert notices.wait(0)
        insert(connection, f"{other}-1")
        assert notices.wait(NEVER)
        assert not waiting.wait(0)
        insert(connection)
        assert waiting.wait(NEVER)
        assert not notices.wait(0)


def test_a_transaction_of_many_categories_takes_few_locks(connection):
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


def test_writers_wait_neither_for_each_other_nor_for_readers(open_connection, waiting):
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


def test_a_delayed_wait_holds_no_lock(connection, open_connection, url):
    """A reader whose wait is delayed holds no lock that would make writers notify."""
    writer = open_connection()
    with Notices(open_connection(), url, CATEGORY) as notices, writer.transaction():
        insert(writer)
        assert not notices.wait(NEVER)
        assert connection.execute(WAITING).fetchone() == (0,)


def test_a_session_switches_its_own_notices_off(waiting, connection):
    """A session can switch its own notices off, as for a bulk load; others still send them."""
    connection.execute("SET reservation.notices = off")
    insert(connection)
    assert not waiting.wait(0)
    connection.execute("RESET reservation.notices")
    insert(connection)
    assert waiting.wait(NEVER)


def test_writers_need_no_rights_for_it(waiting, connection, open_connection, new_role):
    """Writers that have rights to the log alone send notices too, as senders do."""
    inserting, sending = new_role(), new_role()
    for right in (
        "USAGE ON SCHEMA message_store",
        "INSERT ON message_store.messages",
        "USAGE ON SEQUENCE message_store.messages_global_position_seq",
    ):
        run(connection, f"GRANT {right} TO {{}}", inserting)
    grant(connection, "sender", sending, [CATEGORY])
    for role, write in ((inserting, insert), (sending, ours)):
        write(open_connection(options=f"-c role={role}"))
        assert waiting.wait(NEVER)


def test_a_consumer_role_may_wait(connection, url, new_role):
    """The grants of `store grants consumer` suffice to wait for notices, but not to switch them."""
    role = new_role()
    grant(connection, "consumer", role)
    address = as_login(connection, url, role)
    with connect(address, autocommit=True) as reader, Notices(reader, address, CATEGORY) as notices:
        assert notices.wait(0)
        insert(connection)
        assert notices.wait(NEVER)
        assert "must be owner" in store_command(reader, "notices", "off").stderr
    assert notices_given(connection)


def test_something_else_may_end_the_wait(waiting):
    """The caller's own pause waits for the time, or for what wakes it up, and may end at once."""
    asked = []

    class Pause:
        def wait(self, seconds, wake=None):
            asked.append((seconds, wake is not None))

    assert waiting.wait(NEVER, pause=Pause()) is False
    assert asked == [(NEVER, True)]


def test_a_lost_connection_makes_it_poll_and_then_connect_again(waiting, connection, later):
    """After a lost connection the reader polls until it reconnects, and misses nothing."""
    connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND query LIKE '%expect_notice%' "
        "AND pid <> pg_backend_pid()"
    )
    notified = False
    while waiting.missing is None:  # the server's last words may come before the end
        notified = waiting.wait(NEVER)
    assert notified  # a message may have been missed
    assert "lost" in waiting.missing
    insert(connection)
    assert not waiting.wait(NEVER, poll=0)
    later(11)
    assert waiting.wait(NEVER)
    assert waiting.missing is None
    insert(connection)
    assert waiting.wait(NEVER)


def test_a_connection_that_cannot_be_opened_makes_it_poll(url, connection):
    """Without a connection for notices the reader polls, and says why."""
    with Notices(connection, conninfo.make_conninfo(url, user="nobody_"), CATEGORY) as notices:
        assert not notices.wait(NEVER, poll=0)
        assert "Cannot reach the database" in notices.missing


def test_switching_is_seen_while_waiting(connection, url, later):
    """While notices are off the reader polls with no other connection, until they are on again."""
    switch_notices(connection, "off")
    with Notices(connection, url, CATEGORY) as notices:
        assert not notices.wait(NEVER, poll=0)
        assert notices.missing == "they are off"
        sessions = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%expect_notice(%'"
        assert connection.execute(sessions).fetchone() == (1,)  # this question
        switch_notices(connection, "on")
        later(11)
        assert notices.wait(NEVER)
        switch_notices(connection, "off")
        insert(connection)
        assert not notices.wait(0)
        notices.leave()
        assert not notices.wait(NEVER, poll=0)
        assert notices.missing == "they are off"


def test_the_command_switches_notices_and_prints_the_result(connection):
    """`store notices` switches notices, can be repeated, and says what it changed."""
    printed = [
        store_command(connection, "notices", *arguments).stdout
        for arguments in ([], ["off"], ["off"], ["--json"], ["on"], ["on"])
    ]
    assert printed[:3] == ["notices: on\n", "notices: switched off\n", "notices: were off\n"]
    assert json.loads(printed[3]) == {"notices": "off", "changed": False}
    assert printed[4:] == ["notices: switched on\n", "notices: were on\n"]


def test_a_disabled_trigger_is_no_notice(connection):
    """Where the trigger is there but disabled, notices are off, and can be switched on and off."""
    connection.execute("ALTER TABLE message_store.messages DISABLE TRIGGER reservation_notice")
    assert not notices_given(connection)
    for switch in ("on", "off"):
        printed = store_command(connection, "notices", switch).stdout
        assert printed == f"notices: switched {switch}\n"
    assert connection.execute(
        "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'message_store.messages'::regclass"
    ).fetchone() == (0,)


def test_a_new_store_gives_notice_and_a_repair_leaves_the_choice(empty_database_url):
    """Installing turns notices on once; neither a repair nor attaching turns them on again."""
    with connect(empty_database_url, autocommit=True) as connection:
        assert "reservation store install" in store_command(connection, "notices", "on").stderr
        assert install(connection).notices
        switch_notices(connection, "off")
        assert not install(connection).notices
        connection.execute("DROP FUNCTION reservation.outcome CASCADE")
        repaired = install(connection)
        assert (repaired.restored, repaired.notices) == (1, False)
        detach(connection)
        assert not attach(connection).notices  # attaching changes nothing in message_store
        detach(connection)
        assert install(connection).notices


def test_a_store_of_message_db_gives_notice_until_it_is_detached(empty_database_url):
    """On a store of Message DB notices work until it is detached."""
    with connect(empty_database_url, autocommit=True) as connection:
        imitate(connection)
        attach(connection)
        switch_notices(connection, "on")
        with Notices(connection, empty_database_url, CATEGORY) as notices:
            assert notices.wait(0)
            with connect(empty_database_url, options="-csearch_path=message_store") as writer:
                writer.execute(
                    "SELECT write_message(gen_random_uuid()::varchar, 'thing-1', 'T', '{}')"
                )
            assert notices.wait(NEVER)
        detached = detach(connection)
        assert detached.dependents == ("trigger reservation_notice on message_store.messages",)
        insert(connection)


def test_consumers_are_woken_up(connection, store, database_url):
    """Consumers wait for notice, and handle what comes sooner than they would find it."""
    with capture_logs() as logged, hosted(account, database_url) as thread:
        for category in (COMMANDS.partition("-")[0], "accountTransaction"):
            awaited = {"event": "notice_awaited", "category": category}
            until(lambda: any(awaited.items() <= line.items() for line in logged), thread)  # noqa: B023
        store.write(open_(), COMMANDS)
        for n in range(9):
            store.write(deposit(f"d{n}"), COMMANDS)
            until(lambda: store.stream_version("account-123") > n, thread)  # noqa: B023
    assert event_types(store) == ["Opened"] + ["Deposited"] * 9
    ((took,),) = connection.execute(
        "SELECT array_agg(extract(epoch FROM e.time - c.time)::float) "
        "FROM message_store.messages c JOIN message_store.messages e "
        "ON c.data->>'depositId' = e.data->>'depositId' "
        "WHERE c.stream_name = %s AND e.type = 'Deposited'",
        [COMMANDS],
    )
    assert statistics.median(took) < 0.9  # of a second; two consumers look every 1.2


def test_a_batch_that_takes_long_asks_for_no_notices(connection, store, listener, database_url):
    """While a handler takes long, writers notify nobody, so the server's queue does not fill."""
    component, began, go_on = Component("slow", id="slow_id"), threading.Event(), threading.Event()

    @component.initiate(Begin)
    def begin(command, context):
        began.set()
        assert go_on.wait(PATIENCE)
        return context.follow(command, Begun)

    count = listener("slow:command", waits=False)
    with hosted(component, database_url) as thread:
        until(lambda: connection.execute(WAITING).fetchone() != (0,), thread)
        store.write(Begin("1"), "slow:command-1")
        assert began.wait(PATIENCE)
        assert count() == 1
        until(lambda: connection.execute(WAITING).fetchone() == (0,), thread)
        store.write(Begin("2"), "slow:command-2")
        assert count() == 0
        go_on.set()
        until(lambda: store.stream_version("slow-2") == 0, thread)
