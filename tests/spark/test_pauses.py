"""What reconciliation says of messages that are paused: they are not handled yet."""

import json

from tests.apps.bank import drain
from tests.support.controls import COMMANDS, deposit, open_, withdraw


def test_paused_messages_are_no_violation(connection, store, command, reconcile):
    """What a paused consumer has not read is pending; what a paused type waits for, a letter."""
    store.write(open_(), COMMANDS)
    drain(connection)
    pause(command, "--type", "Deposit")
    store.write([deposit("d1"), withdraw("w1")], COMMANDS)
    drain(connection)
    pause(command, "--category", "accountTransaction")
    store.write(deposit("d2"), COMMANDS)
    drain(connection)
    pause(command)
    store.write(deposit("d3"), COMMANDS)
    drain(connection)

    found = reconcile()
    assert (found.status, found.found) == (0, [])
    assert found.commands == {"commands": 4, "keys": 4, "reserved": 3, "pending": 1}
    (effects,) = found.report["effects"]
    counts = {name: effects[name] for name in ("reserved", "handled", "dead", "pending")}
    assert counts == {"reserved": 3, "handled": 0, "dead": 2, "pending": 1}

    assert command("resume", "account", "--all").returncode == 0
    drain(connection)
    found = reconcile()
    assert (found.status, found.report["effects"][0]["handled"]) == (0, 4)


def test_a_check_is_in_order_while_messages_are_paused(connection, store, command):
    """They fit the declaration as before."""
    store.write(open_(), COMMANDS)
    drain(connection)
    pause(command, "--type", "Deposit")
    store.write([deposit("d1"), withdraw("w1")], COMMANDS)
    drain(connection)
    done = command("check", "bank:account", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["inOrder"]


def pause(command, *arguments):
    done = command("pause", "account", *arguments, "--reason", "migration")
    assert done.returncode == 0, done.stderr
