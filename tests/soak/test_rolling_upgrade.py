"""Two versions of a component at once on one store: senders and consumers, under load and kills."""

import dataclasses
import json
import os
import signal
import uuid

import pytest

from bank.messages import Deposit, Open, Withdraw
from bank.traffic import Traffic, make_traffic
from tests.apps.bank import READS, RESERVED, broken, wait_until_drained
from tests.soak.sending import Sender
from tests.soak.versions import imported, write_versions
from tests.support.chance import seeds
from tests.support.started import EXAMPLES, Started, run_cli

ARGUMENTS = ("--batch-size", "20", "--partitions", "4")

# Of each key: how many commands there are, and how many reservations or streams that they started.
COUNTED = """
SELECT count(*) FILTER (WHERE category = 'account:command'),
       count(*) FILTER (WHERE category = 'accountTransaction' OR type = 'Opened')
FROM (
  SELECT message_store.category(stream_name) AS category, type FROM message_store.messages
  WHERE type NOT IN ('Close', 'Closed')
) AS m
"""

# The invariants know commands by the names that they had at first.
FORMER_NAMES = """
UPDATE message_store.messages SET type = CASE type WHEN 'OpenAccount' THEN 'Open' ELSE 'Deposit' END
WHERE type IN ('OpenAccount', 'MakeDeposit')
"""


def again(traffic: Traffic, version: object) -> Traffic:
    """Return the same sends by the senders of a later version, under other ids."""
    classes = {Open: version.OpenAccount, Deposit: version.MakeDeposit, Withdraw: version.Withdraw}

    def newer(write):
        known = {field.name for field in dataclasses.fields(write.message)}
        fields = {name: getattr(write.message, name) for name in known}
        if isinstance(write.message, Open):
            fields["currency"] = "EUR"
        class_ = classes.get(type(write.message), type(write.message))
        return dataclasses.replace(write, message=class_(**fields), id=uuid.uuid4())

    return Traffic(
        traffic.accounts,
        {name: [newer(write) for write in writes] for name, writes in traffic.prompt.items()},
        [newer(write) for write in traffic.late],
    )


def keys(traffic: Traffic) -> set[str]:
    """Return the keys of the commands of which each takes effect once."""
    writes = [write for writes in traffic.prompt.values() for write in writes]
    return {
        getattr(one, "deposit_id", None) or getattr(one, "withdrawal_id", None) or one.account_id
        for one in (write.message for write in writes)
        if type(one).__name__ != "Close"
    }


def ready(*running: Started) -> None:
    """Wait until each has a part of each category."""
    for one in running:
        for category in READS:
            one.wait_for("consumer_started", category=category)


@pytest.mark.parametrize("seed", seeds(1))
def test_every_reissue_is_a_duplicate_whichever_version_sends_and_consumes(
    connection, database_url, tmp_path, seed
):
    """Old senders send, new ones reissue all of it; old and new consumers share the partitions.

    The old ones are killed and started again on the way. Then only new ones are left, which write
    the new names and have another key, and all is sent once more under these.
    """
    write_versions(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES)}
    first = make_traffic(accounts=20, sends=400, seed=seed)
    then = make_traffic(accounts=20, sends=1200, seed=seed + 1)
    logs, acknowledged = [], set()

    def consumers(app, **where):
        return Started(database_url, *ARGUMENTS, app=app, **where)

    def finish(*senders):
        for sender in senders:
            sender.finish()
            acknowledged.update(sender.acknowledged)

    later = {"cwd": tmp_path, "env": environment}
    with (
        imported(tmp_path, "second") as second,
        imported(tmp_path, "third") as third,
        consumers("bank:account") as killed,
        Sender(database_url, first) as of_first,
    ):
        ready(killed)
        killed.wait_for("batch_committed", category=RESERVED)
        with consumers("second:account", **later) as new:
            ready(new)
            with (
                Sender(database_url, then) as of_then,
                Sender(database_url, again(first, second)) as again_first,
            ):
                new.wait_for("batch_committed", category=RESERVED)
                killed.stop_group(signal.SIGKILL)
                with (
                    consumers("bank:account") as old,
                    Sender(database_url, again(then, second)) as again_then,
                ):
                    ready(old)
                    finish(of_first, of_then, again_first, again_then)
                    wait_until_drained(connection, old, new)
                    assert old.stop() == 0
            with consumers("third:account", **later) as newest:
                ready(newest)
                assert new.stop() == 0
                for traffic in (first, then):
                    with Sender(database_url, again(traffic, third)) as last:
                        finish(last)
                wait_until_drained(connection, newest)
                assert newest.stop() == 0
            logs = [killed.log, old.log, new.log, newest.log]
    types = connection.execute(
        "SELECT DISTINCT type FROM message_store.messages "
        "WHERE message_store.category(stream_name) = 'account:command'"
    )
    assert {type_ for (type_,) in types} == {
        *("Open", "Deposit", "Withdraw", "Close", "OpenAccount", "MakeDeposit")
    }
    found = run_cli(
        *("reconcile", "third:account", "--json"),
        env=environment | {"RESERVATION_DATABASE_URL": database_url},
        cwd=tmp_path,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    report = json.loads(found.stdout)
    judged = [(one["conflicts"], one["missing"], one["pending"]) for one in report["categories"]]
    assert {*judged} == {(0, 0, 0)}
    commands, effects = connection.execute(COUNTED).fetchone()
    assert effects == len(keys(first) | keys(then)) < commands / 3
    connection.execute(FORMER_NAMES)
    assert broken(connection, acknowledged) == {}
    assert connection.execute("SELECT * FROM reservation.dead_letters").fetchall() == []
    assert not [line for log in logs for line in log.splitlines() if '"conflict"' in line]
