"""What ``reservation status`` shows of consumers, on a real store."""

import codecs
import json
import os
import pty
import select
import signal
import subprocess
import time
from datetime import UTC, datetime, timedelta

import pytest
from psycopg import conninfo

from bank import account
from consumers.group.inspection.status import read_status
from consumers.group.inspection.stored_positions import Holder
from consumers.group.inspection.summary import read_summary
from reservation.postgres.connection import connect
from reservation.store.schema.roles import grant
from tests.commands import invoke_cli
from tests.letters import letters
from tests.processes import EXAMPLES, PATIENCE, command_line

COMMANDS = "account:command"

MESSAGES = """
INSERT INTO message_store.messages (global_position, stream_name, position, type, data, time)
SELECT n, %(category)s || '-' || n %% %(streams)s, n, 'Deposit', '{}',
       now() AT TIME ZONE 'utc' - interval '1 second' * %(age)s
FROM generate_series(%(first)s::bigint, %(last)s) AS n
"""


def messages(connection, first, last, *, category=COMMANDS, streams=100, age=0):
    """Store messages at these global positions."""
    parameters = {"category": category, "streams": streams, "age": age}
    connection.execute(MESSAGES, {**parameters, "first": first, "last": last})


def group(connection, positions, *, category=COMMANDS, consumer="account", carried=None):
    """Store a group with these positions, partition by partition."""
    connection.execute(
        "INSERT INTO reservation.groups (consumer, category, partitions, carried) "
        "VALUES (%s, %s, %s, %s)",
        [consumer, category, len(positions), carried],
    )
    for partition, position in enumerate(positions):
        connection.execute(
            "INSERT INTO reservation.positions (consumer, category, partition, position) "
            "VALUES (%s, %s, %s, %s)",
            [consumer, category, partition, position],
        )


def left(connection, partition, partitions, position):
    """Count the unread messages of a partition, without any limit."""
    row = connection.execute(
        "SELECT count(*) FROM message_store.messages WHERE global_position > %s "
        "AND reservation.partition_of(stream_name, %s) = %s",
        [position, partitions, partition],
    ).fetchone()
    return row[0]


def test_a_consumer_that_was_never_run_is_shown_at_the_start(connection):
    """A consumer that was never run is shown at the start, with its lag and no holder."""
    messages(connection, 1, 5, age=90)
    seen = read_status(connection, account).partitions
    assert [partition.stored.category for partition in seen] == [COMMANDS, "accountTransaction"]
    assert (seen[0].stored.position, seen[0].head, seen[0].lag.messages) == (0, 5, 5)
    assert 90 <= seen[0].lag.seconds < 90 + PATIENCE
    assert (seen[0].stored.holder, seen[0].stored.updated_at) == (None, None)
    assert (seen[1].head, seen[1].lag.messages, seen[1].lag.seconds) == (0, 0, None)
    assert read_status(connection).partitions == []


def test_each_partition_has_a_lag_of_its_own(connection):
    """Each partition shows the lag of its own messages."""
    messages(connection, 1, 500, age=300)
    messages(connection, 501, 600, age=20)
    positions = [100, 600, 550, 0]
    group(connection, positions)
    seen = read_status(connection).partitions
    assert [partition.stored.position for partition in seen] == positions
    expected = [left(connection, n, 4, position) for n, position in enumerate(positions)]
    assert [partition.lag.messages for partition in seen] == expected
    assert expected[1] == 0 < min(expected[0], expected[2], expected[3])
    assert not any(partition.lag.at_least for partition in seen)
    ages = [partition.lag.seconds for partition in seen]
    assert ages[1] is None
    assert ages[0] >= 300
    assert 20 <= ages[2] < 300 <= ages[3]


def test_what_was_handled_in_earlier_partitions_is_not_counted(connection):
    """Messages handled before the number of partitions changed do not count as lag."""
    messages(connection, 1, 100)
    group(connection, [0], carried=[100, 0])
    (seen,) = read_status(connection).partitions
    assert seen.lag.messages == left(connection, 1, 2, 0)


def test_counting_stops_at_a_limit_and_says_so(connection):
    """Counting stops at a limit and says so, and other partitions are counted exactly."""
    messages(connection, 1, 1000)
    group(connection, [0, 990])
    behind, close = read_status(connection, most_counted=50).partitions
    assert 0 < behind.lag.messages <= 50
    assert behind.lag.at_least
    assert (close.lag.messages, close.lag.at_least) == (left(connection, 1, 2, 990), False)


def test_passes_are_few_however_far_apart_partitions_are(connection):
    """The number of queries is bounded; a lag beyond them is shown as unknown, not as 0."""
    messages(connection, 1, 1000)
    group(connection, [0, 200, 400, 600, 800])
    *_, last = read_status(connection, most_counted=10).partitions
    assert (last.lag.messages, last.lag.at_least, last.lag.seconds) == (0, True, None)


def test_dead_letters_are_counted_where_they_belong(connection):
    """Open dead letters are counted in the partition of their stream."""
    group(connection, [100, 100])
    states = {"dead": 1, "parked": 2, "retry": 1, "handled": 3, "discarded": 1}
    n = 0
    for state, times in states.items():
        for _ in range(times):
            n += 1
            connection.execute(
                "INSERT INTO reservation.dead_letters (consumer, category, global_position, "
                "message_id, stream_name, type, state, reason, process) VALUES ('account', %s, %s, "
                "gen_random_uuid(), 'account:command-7', 'Deposit', %s, 'HandlerError', 'a:1')",
                [COMMANDS, n, state],
            )
    (where,) = connection.execute(
        "SELECT reservation.partition_of('account:command-7', 2)"
    ).fetchone()
    seen = read_status(connection).partitions
    assert (seen[where].dead, seen[where].parked, seen[where].retry) == (1, 2, 1)
    other = seen[1 - where]
    assert (other.dead, other.parked, other.retry) == (0, 0, 0)


def test_a_summary_adds_up_the_partitions(connection):
    """A summary has the numbers of all partitions, and the age of the oldest of their messages."""
    messages(connection, 1, 100, age=90)
    messages(connection, 101, 200, age=30)
    group(connection, [150, 120, 200])
    letters(connection, [("dead", None), ("parked", None), ("parked", None), ("handled", None)])
    letters(connection, [("dead", "5 s"), ("parked", None)], entity="b", stream=f"{COMMANDS}-8")
    letters(connection, [("dead", "3 s"), ("retry", None)], entity=None)
    seen = read_status(connection)
    summary = read_summary(connection)
    (one,) = summary.consumers
    assert (one.consumer, one.category, one.partitions) == ("account", COMMANDS, 3)
    assert one.lag.messages == sum(part.lag.messages for part in seen.partitions) > 0
    assert not one.lag.at_least
    assert one.lag.seconds == pytest.approx(30, abs=PATIENCE)
    assert one.lag.seconds >= 30
    assert (one.dead, one.parked, one.retry, one.waiting) == (1, 3, 1, 2)
    assert one.parked_entities == 2
    assert one.next_attempt_at == min(
        part.next_attempt_at for part in seen.partitions if part.next_attempt_at
    )
    assert (one.without_holder, one.foreign, one.head) == (3, False, 200)
    assert one.updated_at == max(part.stored.updated_at for part in seen.partitions)
    assert summary.store_id == seen.store_id


def test_a_summary_of_named_consumers_has_those_that_were_never_run(connection):
    """A consumer that was never run is behind by all messages, and nobody holds its partition."""
    messages(connection, 1, 5, age=90)
    group(connection, [5], consumer="other")
    (one,) = read_summary(connection, [("account", COMMANDS)]).consumers
    assert (one.lag.messages, one.without_holder, one.updated_at) == (5, 1, None)
    assert one.lag.seconds >= 90
    assert [seen.consumer for seen in read_summary(connection).consumers] == ["other"]
    assert read_summary(connection, []).consumers == []


def test_a_summary_says_where_it_did_not_count_on(connection):
    """A summary counts up to a limit; a consumer with nothing left has an age of 0."""
    messages(connection, 1, 1000)
    group(connection, [0])
    group(connection, [1000], consumer="other")
    behind, idle = read_summary(connection, most_counted=50).consumers
    assert (behind.lag.messages, behind.lag.at_least) == (50, True)
    assert (idle.lag.messages, idle.lag.at_least, idle.lag.seconds) == (0, False, 0)


def test_a_summary_counts_scheduled_messages_up_to_the_limit(connection):
    """What is overdue comes first, so that a limit does not hide it."""
    connection.execute(
        "INSERT INTO reservation.scheduled (id, due_at, stream_name, type, attempts, attempt_at) "
        "SELECT gen_random_uuid(), now() - interval '1 min' * n, 'a:command-1', 'Deposit', "
        "       CASE WHEN n = 3 THEN 1 ELSE 0 END, CASE WHEN n = 3 THEN now() END "
        "FROM generate_series(-5, 3) AS n"
    )
    status, summary = read_status(connection), read_summary(connection)
    assert summary.schedule.overdue == status.schedule.overdue == 4
    assert summary.schedule.messages == status.schedule.messages == 9
    assert (status.schedule.refused, status.schedule.next_at is None) == (1, False)
    limited = read_summary(connection, most_counted=2).schedule
    assert (limited.messages, limited.overdue, limited.refused) == (3, 3, 1)
    assert (summary.time - limited.overdue_since).total_seconds() < 180 + PATIENCE


def test_an_auditor_may_run_status(connection):
    """An auditor may run `status` with its usual grants."""
    role = f"test_status_{os.getpid()}"
    messages(connection, 1, 5)
    group(connection, [2])
    grant(connection, "auditor", role)
    try:
        connection.execute(f"SET ROLE {role}")
        (seen,) = read_status(connection).partitions
        assert seen.lag.messages == 3
    finally:
        connection.execute("RESET ROLE")
        connection.execute(f"DROP OWNED BY {role}")
        connection.execute(f"DROP ROLE {role}")


def test_the_table_escapes_what_comes_from_the_store(connection, database_url):
    """The table escapes names from the store, and has no colour in a pipe."""
    connection.execute(
        "INSERT INTO message_store.messages (global_position, stream_name, position, type, data) "
        "VALUES (1234567, E'a\\x1b[31m-1', 0, 'Deposit', '{}')"
    )
    group(connection, [0], category="a\x1b[31m", consumer="[bold]x")
    done = invoke_cli("status", "--database-url", database_url, env={"COLUMNS": "200"})
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "a\\x1b[31m" in done.stdout
    assert "[bold]x" in done.stdout
    assert "1,234,567" in done.stdout
    assert "nobody" in done.stdout


def test_the_json_is_as_documented(connection, database_url):
    """The JSON is one object with the documented keys and times in ISO format."""
    messages(connection, 1, 3, age=10)
    group(connection, [1])
    done = invoke_cli("status", "bank:account", "--json", "--database-url", database_url)
    seen = json.loads(done.stdout)
    assert datetime.fromisoformat(seen["time"]) <= datetime.now(UTC)
    first = seen["partitions"][0]
    age, updated = first.pop("lagSeconds"), first.pop("updatedAt")
    assert age >= 10
    assert datetime.fromisoformat(updated).tzinfo is not None
    assert first == {
        "consumer": "account",
        "category": COMMANDS,
        "partition": 0,
        "partitions": 1,
        "position": 1,
        "messageId": None,
        "foreign": False,
        "epoch": 1,
        "head": 3,
        "lagMessages": 2,
        "lagAtLeast": False,
        "holder": None,
        "dead": 0,
        "parked": 0,
        "retry": 0,
        "waiting": 0,
        "nextAttemptAt": None,
    }


OLD = "reservation.inspection.oldest_snapshot.OLD"


def test_the_session_with_the_oldest_snapshot_is_named(connection, database_url, monkeypatch):
    """A session that holds a snapshot for long is named, with what ends it; others are not."""
    monkeypatch.setattr(OLD, timedelta(0))
    with connect(database_url) as forgotten, connect(database_url) as later:
        for session, name in ((forgotten, "[bold]report\x1b"), (later, "later")):
            session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            session.execute("SELECT set_config('application_name', %s, false)", [name])
            session.execute("SELECT count(*) FROM message_store.messages")
        pid = forgotten.info.backend_pid
        held = read_status(connection).oldest_snapshot
        assert held is not None
        assert (held.kind, held.name) == ("session", str(pid))
        done = invoke_cli("status", "--database-url", database_url, env={"COLUMNS": "300"})
        assert f"the session {pid} (role " in done.stdout
        assert "application [bold]report" in done.stdout
        assert f"SELECT pg_terminate_backend({pid})" in done.stdout
        assert "\x1b" not in done.stdout
        forgotten.rollback()
        assert read_status(connection).oldest_snapshot.name == str(later.info.backend_pid)
        monkeypatch.setattr(OLD, timedelta(hours=1))
        assert read_status(connection).oldest_snapshot is None


def test_a_transaction_that_only_waits_holds_no_snapshot(connection, database_url, monkeypatch):
    """Between statements a read committed transaction that wrote nothing holds nothing back."""
    monkeypatch.setattr(OLD, timedelta(0))
    with connect(database_url) as waiting:
        waiting.execute("SELECT 1")
        assert read_status(connection).oldest_snapshot is None
        waiting.execute("CREATE TEMPORARY TABLE written (n int)")
        assert read_status(connection).oldest_snapshot.name == str(waiting.info.backend_pid)


def test_what_holds_a_snapshot_is_in_the_json(connection, database_url, monkeypatch):
    """As it is documented: null, or who holds it and since when."""
    seen = json.loads(invoke_cli("status", "--json", "--database-url", database_url).stdout)
    assert seen["oldestSnapshot"] is None
    monkeypatch.setattr(OLD, timedelta(0))
    with connect(database_url) as forgotten:
        forgotten.execute("CREATE TEMPORARY TABLE written (n int)")
        seen = json.loads(invoke_cli("status", "--json", "--database-url", database_url).stdout)
        held = seen["oldestSnapshot"]
        assert held["name"] == str(forgotten.info.backend_pid)
        assert datetime.fromisoformat(held["since"]) <= datetime.fromisoformat(seen["time"])


class Terminal:
    """The command line on a terminal of its own."""

    def __init__(self, *arguments):
        self.ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            command_line(*arguments),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=EXAMPLES,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "160"},
            start_new_session=True,
        )
        os.close(theirs)
        self.text = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.ours)

    def read_to(self, text):
        """Read until the terminal shows a text, and return the output since the last call."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.text:
            assert select.select([self.ours], [], [], deadline - time.monotonic())[0], self.text
            self.text += self._decoder.decode(os.read(self.ours, 65_536))
        before, found, self.text = self.text.partition(text)
        return before + found


def test_watching_renews_the_table_and_ends_cleanly(connection, database_url):
    """Watching shows new commits, and Ctrl-C restores the terminal."""
    messages(connection, 1, 7)
    group(connection, [0])
    with Terminal("status", "--watch", "0.1", "--database-url", database_url) as terminal:
        assert "\x1b[" in terminal.read_to("7 ")  # on a terminal there are colours
        messages(connection, 8, 4321)
        terminal.read_to("4,321")
        terminal.process.send_signal(signal.SIGINT)
        shown = terminal.read_to("\x1b[?25h")  # the cursor is there again
        assert terminal.process.wait(PATIENCE) == 0
        assert "Traceback" not in shown + terminal.text


def test_watching_outlives_the_database(server_url, database_url):
    """While the database is away the last table stays with the reason."""
    with Terminal("status", "--watch", "0.1", "--database-url", database_url) as terminal:
        terminal.read_to("No consumer")
        name = conninfo.conninfo_to_dict(database_url)["dbname"]
        with connect(server_url, autocommit=True) as admin:
            admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
            terminal.read_to("Cannot reach the database")
            admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        terminal.read_to("No consumer")
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.process.wait(PATIENCE) == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [(["--watch", "1", "--json"], "leave out one"), (["--watch"], "--watch needs a terminal")],
)
def test_watching_is_for_people(database_url, arguments, problem):
    """Watching is refused where the output is no terminal."""
    done = invoke_cli("status", *arguments, "--database-url", database_url, env={"COLUMNS": "200"})
    assert done.returncode == 2
    assert problem in done.stderr


def test_a_holder_without_lease_or_session_is_gone(connection, database_url):
    """A holder whose lease or session has ended, or that is no member, is shown as gone."""
    group(connection, [0, 0, 0, 0, 0])
    with connect(database_url, autocommit=True) as theirs:
        join = (
            "WITH joined AS (INSERT INTO reservation.members (consumer, category, process, "
            "expires_at) VALUES ('account', %s, 'host:' || %s, now() + %s::interval) "
            "RETURNING member) UPDATE reservation.positions SET holder = member FROM joined "
            "WHERE partition = %s"
        )
        for partition, until in enumerate(("1 minute", "-1 second", "1 minute")):
            theirs.execute(join, [COMMANDS, partition, until, partition])
        theirs.execute(
            "SELECT pg_advisory_lock(-1201006963, member::integer) FROM reservation.members "
            "WHERE process <> 'host:2'"
        )
        theirs.execute("UPDATE reservation.positions SET holder = 999 WHERE partition = 3")
        assert [shown.stored.holder for shown in read_status(connection).partitions] == [
            Holder("host:0", gone=False),
            Holder("host:1", gone=True),
            Holder("host:2", gone=True),
            Holder(None, gone=True),
            None,
        ]


def test_status_works_on_a_store_of_message_db(make_database, message_db_template):
    """`status` works on a store of Message DB."""
    with connect(make_database(message_db_template), autocommit=True) as connection:
        messages(connection, 1, 200)
        group(connection, [150, 0], carried=[0, 200, 50])
        (close, behind) = read_status(connection).partitions
        assert 0 < close.lag.messages < 50
        assert 0 < behind.lag.messages < 100
