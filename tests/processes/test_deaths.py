"""Messages that end a started process in one way or another, beside others that do not."""

from tests.apps.bank import RESERVED, broken, event_types, wait_until_drained
from tests.apps.poison import Poison
from tests.apps.two_accounts import letters, start
from tests.support.controls import COMMANDS, deposit, open_

# Of these, two are for one consumer: the host gives up one that dies six times in a short time.
FAULTS = {
    "1": "descriptors_to_sockets",
    "2": "projector",
    "3": "class_exits",
    "4": "terminate_and_fail",
}


def test_each_attempt_that_stops_the_process_counts(connection, store, database_url, tmp_path):
    """Also at a letter whose handler's writes are undone only by a rollback of all."""
    poison = Poison(tmp_path, bad="write_terminate_and_fail")
    store.write([open_(), deposit("bad"), deposit("good")], COMMANDS)
    with start(database_url, poison) as started:
        started.wait_for("message_dead", category=RESERVED)
        assert started.stop() == 0
    states = [(name, state) for name, state, _, _ in letters(connection)]
    assert states == [("bad", "dead"), ("good", "parked")]
    assert poison.calls("bad") <= 6
    assert event_types(store, "123") == ["Opened"]


def test_a_process_that_a_message_ends_is_started_again_and_counts_that(
    connection, store, database_url, tmp_path, monkeypatch
):
    """Each such message is dead after its attempts, and all others are handled.

    A handler closes its files, and something else has their numbers then; a projector raises what
    is no Exception; a class exits. A handler that asks its process to stop, and
    then raises, fails as any other.
    """
    monkeypatch.setenv("POISON_CODE", "all")
    monkeypatch.setenv("POISON_ATTEMPTS", "1")
    faults = {f"bad{account}": fault for account, fault in FAULTS.items()}
    poison = Poison(tmp_path, **faults)

    def send(*accounts):
        for account in accounts:
            good, bad = (deposit(f"{kind}{account}", account=account) for kind in ("good", "bad"))
            store.write([open_(account), good, bad], f"account:command-{account}")

    # By itself: a process that another message ends at that moment logs nothing of it.
    send("2")
    with start(database_url, poison, "--debug") as started:
        crashed = started.wait_for("consumer_crashed", category=RESERVED)
        wait_until_drained(connection, started)
        assert started.stop() == 0
    send("1", "3", "4")
    with start(database_url, poison, "--debug") as started:
        wait_until_drained(connection, started)
        assert started.stop() == 0
        assert '"descriptors_closed"' in started.log
    assert "was ended by Secret in deposited (poisoned.py:" in crashed["error"]
    assert crashed["exception"].startswith("Traceback (most recent call last):\n")
    reasons = {name: reason for name, _, reason, _ in letters(connection)}
    assert reasons == dict.fromkeys(faults, "process_died") | {"bad4": "handler"}
    for name, fault in faults.items():
        # With its batch, beside another consumer's message, and by itself; each batch may have died
        # of another one.
        assert poison.calls(name) <= 4, fault
    for account in FAULTS:
        assert event_types(store, account) == ["Opened", "Deposited"]
    assert broken(connection) == {}
