"""``reservation check --full``: every message, decoded on Spark's workers."""

import json

import pytest

from bank import account
from consumers.checking.check import check
from consumers.checking.messages import sampled
from reservation.inspection.sampling import use_indexes
from reservation.inspection.tally import Tally, declared_categories
from spark_jobs.analysis.decoding import tallies
from spark_jobs.common.declaration import Declaration
from spark_jobs.reconciliation.reading.categories import Categories
from spark_jobs.snapshot.snapshot import exported_snapshot
from tests.bank import RESERVED, drain
from tests.controls import COMMANDS, deposit, open_, withdraw
from tests.processes import EXAMPLES, run_cli
from tests.test_check import insert, many

pytestmark = pytest.mark.spark


def spoil(connection):
    """Store some of everything that a check finds in messages."""
    insert(connection, COMMANDS, "Rename")
    insert(connection, COMMANDS, "Deposit", '{"amount": "secret"}')
    data = {"depositId": "d9", "accountId": "9", "amount": 1, "time": "2026-01-01T00:00:00Z"}
    insert(connection, f"{RESERVED}-d9", "Deposit", json.dumps(data | {"branch": "x"}))
    insert(connection, "account-9", "MoneyDeposited")


def test_the_workers_find_what_a_sample_of_everything_shows(
    spark, spark_connection, spark_store, spark_database_url
):
    """In as many parts as there are, each message once."""
    spark_store.write([open_(), deposit(), withdraw()], COMMANDS)
    drain(spark_connection)
    spoil(spark_connection)
    with spark_connection.transaction():
        use_indexes(spark_connection)
        here = {
            category: tally
            for category, (_, tally) in sampled(spark_connection, account, 10_000).items()
        }
    with exported_snapshot(spark_database_url) as snapshot:
        read = Categories(spark, snapshot, Declaration.of(account))
        there = tallies(read, account, "bank:account", EXAMPLES)
    assert {name: tally.to_json() for name, tally in there.items()} == {
        name: tally.to_json() for name, tally in here.items()
    }
    assert there[RESERVED].misnamed == 1
    assert there["account:command"].types["Deposit"].unreadable == 1
    report = check(spark_connection, account, "bank:account", tallies=there)
    assert (report.full, report.sample, report.in_order) == (True, None, False)
    assert all(one.exact for one in report.types)


def test_tallies_of_parts_add_up_to_that_of_the_whole(connection, store):
    """However the messages are divided."""
    store.write([open_(), deposit(), withdraw()], COMMANDS)
    drain(connection)
    spoil(connection)
    from reservation.inspection.tally import Inspector

    for category in declared_categories(account):
        inspector = Inspector(account, category)
        messages = list(store.read_category(category))
        whole = inspector.tally(messages)
        for size in (1, 2, 3):
            parts = Tally()
            for n in reversed(range(0, len(messages), size)):
                parts.add(Tally.from_json(inspector.tally(messages[n : n + size]).to_json()))
            assert parts == whole


@pytest.mark.long
def test_the_command_decodes_everything(connection, store, database_url, tmp_path):
    """More than a sample would, and it says so; what is written meanwhile is not in it."""
    store.write([open_(), deposit()], COMMANDS)
    drain(connection)
    many(connection, 1, 3_000)
    spoil(connection)
    environment = {"RESERVATION_DATABASE_URL": database_url}
    done = run_cli("check", "bank:account", "--full", "--json", env=environment)
    assert (done.returncode, done.stderr) == (1, "")
    found = json.loads(done.stdout)
    assert (found["full"], found["sample"], found["inOrder"]) == (True, None, False)
    types = {(one["category"], one["type"]): one for one in found["types"]}
    close = types["account:command", "Close"]
    assert (close["messages"], close["lookedAt"], close["exact"]) == (3_000, 3_000, True)
    kinds = sorted(one["kind"] for one in found["findings"] if one["severity"] == "finding")
    assert kinds == [
        *("reservation-names", "unknown-type", "unknown-type"),
        *["unreadable"] * kinds.count("unreadable"),
    ]
    assert "secret" not in done.stdout
