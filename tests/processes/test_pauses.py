"""Pauses of real processes: all of them stop, and a kill changes nothing of it."""

import signal

from reservation import Write
from tests.apps.bank import READS, broken, wait_until_drained
from tests.support.commands import invoke_cli
from tests.support.consuming import until
from tests.support.controls import deposit, open_
from tests.support.started import Started

OPTIONS = ("--workers", "2", "--partitions", "4", "--batch-size", "10")
ACCOUNTS, DEPOSITS = 20, 100
CONSUMERS = 2 * len(READS)


def test_two_processes_stay_paused_whoever_is_killed(connection, store, database_url):
    """Nothing is handled until somebody resumes it, and then everything once, in order."""
    store.write_batch(
        Write(command, f"account:command-{number}")
        for number in range(ACCOUNTS)
        for command in (open_(str(number)), *_deposits(str(number)))
    )
    with Started(database_url, *OPTIONS) as started:
        until(lambda: _events(connection) > ACCOUNTS)
        _run(database_url, "pause", "account", "--reason", "migration")
        for _ in range(CONSUMERS):
            assert started.wait_for("consumer_paused")["reason"] == "migration"
        started.stop_group(signal.SIGKILL)
    handled = _events(connection)
    assert handled < ACCOUNTS * (1 + DEPOSITS)
    with Started(database_url, *OPTIONS) as started:
        for _ in range(CONSUMERS):
            started.wait_for("consumer_paused")
        store.write(deposit("late", account="1"), "account:command-1")
        for process in started.workers:
            process.kill()
            started.wait_for("process_died")
            started.wait_for("consumer_paused")
        assert started.stop() == 0
    assert _events(connection) == handled
    assert connection.execute("SELECT count(*) FROM reservation.dead_letters").fetchone() == (0,)
    with Started(database_url, *OPTIONS) as started:
        started.wait_for("consumer_paused")
        _run(database_url, "resume", "account")
        wait_until_drained(connection, started)
        assert started.stop() == 0
    assert _events(connection) == ACCOUNTS * (1 + DEPOSITS) + 1
    assert broken(connection) == {}


def _deposits(number):
    return [deposit(f"d{number}-{n}", account=number) for n in range(DEPOSITS)]


def _events(connection):
    query = "SELECT count(*) FROM message_store.messages WHERE stream_name LIKE 'account-%'"
    return connection.execute(query).fetchone()[0]


def _run(database_url, *arguments):
    done = invoke_cli(*arguments, env={"RESERVATION_DATABASE_URL": database_url})
    assert done.returncode == 0, done.stderr
