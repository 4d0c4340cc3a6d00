"""Being told to stop while a handler is at work: in time, whatever the handler does."""

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
    """It is committed, and then the consumer ends."""
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
def test_a_handler_that_takes_longer_than_the_grace_is_not_waited_for(
    connection, store, database_url, tmp_path, monkeypatch, only, how
):
    """Not even one that swallows every exception; its batch is handled after the next start."""
    app = holding(tmp_path, monkeypatch, how)
    with start(database_url, app, "--grace", "0.5", *only) as started:
        app.wait()
        began = time.monotonic()
        assert started.stop() == 0
        assert 0.5 <= time.monotonic() - began < 5
        abandoned = started.wait_for("batch_abandoned", category=RESERVED)
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
    """Whoever asks twice does not want to wait."""
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
    """Each consumer hears it twice, from the terminal and from the host, and that is one order."""
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
def test_a_consumer_that_can_not_even_end_itself_is_killed_by_its_host(
    database_url, store, tmp_path, monkeypatch
):
    """One that does not run at all, such as a stopped one, does not keep the host from ending."""
    app = holding(tmp_path, monkeypatch, "deaf")
    with start(database_url, app, "--grace", "0.1") as started:
        app.wait()
        consumers = psutil.Process(started.process.pid).children()[-2:]
        for one in consumers:
            one.suspend()
        assert started.stop() == 0
        assert started.log.count("batch_abandoned") == 2
        assert not any(one.is_running() for one in consumers)
    assert event_types(store) == ["Opened"]


@pytest.mark.faults
@pytest.mark.usefixtures("held")
def test_a_consumer_whose_host_was_killed_is_not_held_up_by_its_handler(
    database_url, store, tmp_path, monkeypatch
):
    """It would keep its locks for ever, and nobody would be there to end it."""
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
    """The server would go on with it, and keep its locks, until it has something to answer."""
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
    """A negative one is refused with status 2."""
    done = invoke_cli("start", "bank:account", "--grace", "-1", "--database-url", database_url)
    assert done.returncode == 2
    assert "--grace" in done.stderr


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_whose_handler_cannot_be_given_back_is_handled_by_default(number, monkeypatch):
    """One that was not installed from Python is not known; ours would write to a closed pipe."""
    before = {one: signal.getsignal(one) for one in STOP_SIGNALS}
    try:
        with monkeypatch.context() as patched:
            patched.setattr(signal, "getsignal", lambda _: None)
            with Stop():
                pass
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_program_that_ran_a_consumer_hears_signals_as_before(number):
    """Its own handlers are back, and what it starts inherits no blocked signal."""
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
