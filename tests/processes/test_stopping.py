"""Stopping while a handler is at work: in time, whatever the handler does."""

import signal
import subprocess
import sys

import psutil
import pytest

from tests.apps.bank import RESERVED, broken, drain, event_types
from tests.apps.holding import HELD, Holding
from tests.support.controls import COMMANDS, deposit, open_
from tests.support.started import PATIENCE, wait_until_gone

ENDING = """
import os, signal
from consumers.runtime.stopping import Stop

class AtTheEnd:
    # Python has restored the default of signals by then, and other threads do not block them.
    def __del__(self, kill=os.kill, pid=os.getpid(), mask=signal.pthread_sigmask, s=signal):
        mask(s.SIG_UNBLOCK, [s.SIGTERM])
        kill(pid, s.SIGTERM)
        print("signalled")

at_the_end = AtTheEnd()
with Stop(ends_process=True):
    pass
"""


@pytest.fixture
def deaf(tmp_path, store):
    """Give an app whose handler of a deposit never returns, and write such a deposit."""
    store.write([open_(), deposit(), deposit(HELD)], COMMANDS)
    return Holding(tmp_path, "deaf")


def processes(started):
    """Return the process that runs the consumers, which is the only one of its host."""
    return psutil.Process(started.process.pid).children()


def test_what_exceeds_the_grace_period_is_ended_and_handled_after_a_restart(
    admin, connection, store, database_url, deaf
):
    """A handler and a statement of the server end with their consumers, and keep no locks."""
    connection.execute(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_sleep(3600); RETURN NULL; END $$"
    )
    with deaf.start(database_url, "--grace", "0.5") as started:
        deaf.wait()
        connection.execute(
            "CREATE TRIGGER slow BEFORE INSERT ON message_store.messages FOR EACH STATEMENT "
            "WHEN (current_setting('application_name') LIKE 'reservation account%') "
            "EXECUTE FUNCTION slow()"
        )
        store.write(deposit("d2"), COMMANDS)
        while not admin.execute(
            "SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
        ).fetchall():
            assert started.process.poll() is None
        assert started.stop() == 0
        for category in ("account:command", RESERVED):
            abandoned = started.wait_for("batch_abandoned", category=category)
            assert abandoned["grace"] == 0.5  # so it ended by itself, and was not killed for it
            assert abandoned["level"] == "warning"
        assert "Traceback" not in started.log
    assert wait_until_gone(admin, database_url)
    assert event_types(store) == ["Opened"]
    connection.execute("DROP TRIGGER slow ON message_store.messages")
    drain(connection)
    assert event_types(store) == ["Opened"] + ["Deposited"] * 3
    assert broken(connection) == {}


def test_a_second_signal_stops_at_once(database_url, store, deaf):
    """However long the grace period is."""
    with deaf.start(database_url, "--grace", "300") as started:
        deaf.wait()
        started.process.send_signal(signal.SIGTERM)
        started.process.send_signal(signal.SIGINT)
        assert started.process.wait(PATIENCE) == 0
        started.wait_for("batch_abandoned", category=RESERVED)
    assert event_types(store) == ["Opened"]


def test_a_process_that_hangs_is_killed_by_its_supervisor(database_url, store, deaf):
    """One that does not run at all, as after SIGSTOP, cannot end itself."""
    with deaf.start(database_url, "--grace", "0.1") as started:
        deaf.wait()
        (hanging,) = processes(started)
        hanging.suspend()
        assert started.stop() == 0
        assert started.log.count("batch_abandoned") == 1  # of the one that had a message in flight
        assert not hanging.is_running()
    assert event_types(store) == ["Opened"]


def test_consumers_whose_supervisor_was_killed_end_despite_their_handlers(
    admin, database_url, store, deaf
):
    """They notice it by themselves, and free what they have locked."""
    with deaf.start(database_url, "--grace", "0.1") as started:
        deaf.wait()
        left = processes(started)
        started.process.kill()
        _, alive = psutil.wait_procs(left, PATIENCE)
        assert alive == []
    assert wait_until_gone(admin, database_url)
    assert event_types(store) == ["Opened"]


def test_a_process_that_is_asked_to_stop_again_as_it_ends_has_stopped():
    """Service managers send a signal to the host and to its processes, at about the same time."""
    ended = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "signalled\n")
