"""Stopping while a handler is at work: in time, whatever the handler does."""

import os
import signal
import time

import psutil
import pytest

from consumers.runtime.stopping import STOP_SIGNALS, Stop
from tests.bank import RESERVED, broken, event_types
from tests.commands import invoke_cli
from tests.controls import COMMANDS, deposit, open_
from tests.holding import HELD, holding
from tests.processes import PATIENCE, Started, wait_until_gone

ONLY = [[], ["--only", "reserved"]]


def start(database_url, app, *arguments):
    """Start the app whose handler waits."""
    return Started(database_url, "--app-dir", str(app.folder), *arguments, app="held:account")


@pytest.fixture
def held(store, database_url):
    """Leave a reserved deposit behind, at which the handler will wait."""
    store.write([open_(), deposit(), deposit(HELD)], COMMANDS)
    with Started(database_url, "--only", "commands") as started:
        started.wait_for("batch_committed", reserved=2)
        assert started.stop() == 0


@pytest.mark.faults
@pytest.mark.parametrize("only", ONLY)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.usefixtures("held")
def test_the_batch_in_hand_is_finished_within_the_grace(
    connection, store, database_url, tmp_path, monkeypatch, only, number
):
    """A batch that ends within the grace period is committed before the consumer ends."""
    app = holding(tmp_path, monkeypatch)
    with start(database_url, app, *only) as started:
        app.wait()
        started.process.send_signal(number)
        app.let_go()
        assert started.process.wait(PATIENCE) == 0
        assert '"handled": 2' in started.log
        assert "batch_abandoned" not in started.log
    assert broken(connection) == {}


@pytest.mark.faults
@pytest.mark.parametrize("only", ONLY)
@pytest.mark.parametrize("how", ["once", "deaf"])
@pytest.mark.usefixtures("held")
def test_a_handler_that_exceeds_the_grace_period_is_ended(
    connection, store, database_url, tmp_path, monkeypatch, only, how
):
    """A handler that exceeds the grace period is ended; its batch is handled after a restart."""
    app = holding(tmp_path, monkeypatch, how)
    with start(database_url, app, "--grace", "0.5", *only) as started:
        app.wait()
        began = time.monotonic()
        assert started.stop() == 0
        assert 0.5 <= time.monotonic() - began < 5
        abandoned = started.wait_for("batch_abandoned", category=RESERVED)
        assert abandoned["grace"] == 0.5  # so it ended by itself, and was not killed for it
        assert abandoned["level"] == "warning"
        assert "Traceback" not in started.log
    assert event_types(store) == ["Opened"]
    with Started(database_url, "--only", "reserved") as again:
        for _ in range(2):  # one by one, because the process before may have died of either
            again.wait_for("batch_committed", handled=1)
        assert again.stop() == 0
    assert broken(connection) == {}


@pytest.mark.faults
@pytest.mark.parametrize("only", ONLY)
@pytest.mark.usefixtures("held")
def test_a_second_signal_stops_at_once(database_url, store, tmp_path, monkeypatch, only):
    """A second signal stops at once."""
    app = holding(tmp_path, monkeypatch, "deaf")
    with start(database_url, app, "--grace", "300", *only) as started:
        app.wait()
        started.process.send_signal(signal.SIGTERM)
        started.process.send_signal(signal.SIGINT)
        assert started.process.wait(PATIENCE) == 0
        started.wait_for("batch_abandoned", category=RESERVED)
    assert event_types(store) == ["Opened"]


@pytest.mark.faults
@pytest.mark.usefixtures("held")
def test_a_signal_to_the_group_leaves_time_to_finish(
    connection, database_url, tmp_path, monkeypatch
):
    """The signals of the terminal and of the supervisor count as one request to stop."""
    app = holding(tmp_path, monkeypatch)
    with start(database_url, app) as started:
        app.wait()
        os.killpg(started.process.pid, signal.SIGINT)
        app.let_go()
        assert started.process.wait(PATIENCE) == 0
        assert "batch_abandoned" not in started.log
    assert broken(connection) == {}


@pytest.mark.faults
@pytest.mark.usefixtures("held")
def test_a_consumer_that_cannot_end_itself_is_killed_by_its_supervisor(
    database_url, store, tmp_path, monkeypatch
):
    """A consumer that does not run at all, as after SIGSTOP, is killed by the supervisor."""
    app = holding(tmp_path, monkeypatch, "deaf")
    with start(database_url, app, "--grace", "0.1") as started:
        app.wait()
        consumers = psutil.Process(started.process.pid).children()[-2:]
        for consumer in consumers:
            consumer.suspend()
        assert started.stop() == 0
        assert started.log.count("batch_abandoned") == 2
        assert not any(consumer.is_running() for consumer in consumers)
    assert event_types(store) == ["Opened"]


@pytest.mark.faults
@pytest.mark.usefixtures("held")
def test_a_consumer_whose_supervisor_was_killed_is_not_held_up_by_its_handler(
    database_url, store, tmp_path, monkeypatch
):
    """A consumer whose supervisor was killed ends despite its handler and frees its locks."""
    app = holding(tmp_path, monkeypatch, "deaf")
    with start(database_url, app, "--grace", "0.1") as started:
        app.wait()
        consumers = psutil.Process(started.process.pid).children()[-2:]
        started.process.kill()
        _gone, alive = psutil.wait_procs(consumers, PATIENCE)
        assert alive == []
    assert event_types(store) == ["Opened"]


@pytest.mark.faults
@pytest.mark.usefixtures("held")
def test_a_statement_that_takes_long_ends_with_its_consumer(admin, connection, database_url):
    """A long statement is cancelled when its consumer ends, so that it keeps no locks."""
    connection.execute(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_sleep(3600); RETURN NULL; END $$"
    )
    connection.execute(
        "CREATE TRIGGER slow BEFORE INSERT ON message_store.messages "
        "FOR EACH STATEMENT EXECUTE FUNCTION slow()"
    )
    with Started(database_url, "--only", "reserved", "--grace", "0.1") as started:
        started.wait_for("consumer_started")
        while not admin.execute(
            "SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
        ).fetchall():
            assert started.process.poll() is None
        assert started.stop() == 0
        started.wait_for("batch_abandoned")
    assert wait_until_gone(admin, database_url)


def test_a_grace_is_a_time(database_url):
    """A negative grace period is refused with status 2."""
    done = invoke_cli("start", "bank:account", "--grace", "-1", "--database-url", database_url)
    assert done.returncode == 2
    assert "--grace" in done.stderr


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_whose_handler_cannot_be_restored_is_handled_by_default(number, monkeypatch):
    """A signal handler that was not installed from Python is replaced by the default."""
    before = {signal_number: signal.getsignal(signal_number) for signal_number in STOP_SIGNALS}
    try:
        with monkeypatch.context() as patched:
            patched.setattr(signal, "getsignal", lambda _: None)
            with Stop():
                pass
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        for signal_number, handler in before.items():
            signal.signal(signal_number, handler)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_program_that_ran_a_consumer_hears_signals_as_before(number):
    """A program that ran a consumer has its own signal handlers and no blocked signal."""
    heard = []
    before = signal.signal(number, lambda *_: heard.append(number))
    try:
        with Stop() as stop:
            signal.raise_signal(number)
            assert stop.requested
            assert heard == []
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()).isdisjoint(STOP_SIGNALS)
        signal.raise_signal(number)
        assert heard == [number]
    finally:
        signal.signal(number, before)
