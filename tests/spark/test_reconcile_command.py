"""``reservation reconcile`` from start to exit, on stores with planted findings."""

import json
import stat

import pyarrow.parquet as pq
import pytest

from bank.messages import Deposit, Withdraw
from reservation import Metadata, Write
from reservation.maintenance import stored_reports
from tests.bank import batch, batches, drain
from tests.commands import invoke_cli
from tests.controls import COMMANDS, LATER, deposit, open_, withdraw
from tests.idempotence import PURSE, drained, purse
from tests.processes import EXAMPLES, run_cli

pytestmark = pytest.mark.spark


@pytest.fixture
def planted(connection, store):
    """Plant one or more of every finding in a store, beside what is in order."""
    store.write([open_(), deposit("d1"), deposit("d1", time=LATER), deposit("lost")], COMMANDS)
    store.write(withdraw("w1"), COMMANDS)
    batches(connection)
    # Lost: the reservation and its effects are gone although the consumer has read the command.
    connection.execute(
        "DELETE FROM message_store.messages WHERE stream_name = 'accountTransaction-123+lost'"
    )
    # A conflict, read by the consumer and discarded.
    store.write([deposit("d1", amount="99"), open_(customer="another")], COMMANDS)
    batch(connection, "account:command").run(100)
    # Orphans, and a stream with more than one message.
    store.write_batch(
        [
            Write(deposit("o1"), "accountTransaction-123+o1"),
            Write(deposit("o2"), "accountTransaction-123+o2\u202e<b>"),
            Write(deposit("d1"), "accountTransaction-123+d1"),
            Write(deposit("d1"), "accountTransaction-123+d1"),
        ]
    )
    # Pending: not read yet.
    store.write([deposit("p1"), deposit("p2"), deposit("p1")], COMMANDS)


@pytest.mark.check
def test_each_planted_finding_is_found(planted, connection, database_url, tmp_path):
    """The counts equal the planted findings, and every row is in the output."""
    output = tmp_path / "findings"
    done = run_cli(
        "reconcile",
        "bank:account",
        "--json",
        "--details",
        "--output",
        str(output),
        *("--html", str(tmp_path / "page.html"), "--junit", str(tmp_path / "junit.xml")),
        *("--prometheus", str(tmp_path / "metrics.prom"), "--state", str(tmp_path / "state")),
        "--store-report",
        env={"RESERVATION_DATABASE_URL": database_url},
    )
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    (stored,) = stored_reports.page(connection, "account", 10)
    assert json.loads(stored_reports.read(connection, stored.number)[1]) == report
    assert stored.time.isoformat() == report["time"]
    assert (stored.findings["missing"], stored.findings["orphan"], stored.in_order) == (1, 2, False)
    ((last,),) = connection.execute(
        "SELECT max(global_position) FROM message_store.messages"
    ).fetchall()
    assert (stored.mode, stored.up_to) == ("incremental", last)
    assert report["categories"] == [
        {
            "commandCategory": "account:command",
            "reservationCategory": "accountTransaction",
            "commands": 8,
            "keys": 5,
            "keyless": 0,
            "duplicates": 2,
            "reserved": 2,
            "missing": 1,
            "pending": 2,
            "dead": 0,
            "orphans": 2,
            "multiple": 1,
            "conflicts": 1,
            "wrongType": 0,
            "conflictMismatches": 0,
            "corrected": 0,
        }
    ]
    (opened,) = report["initiations"]
    assert (opened["commands"], opened["keys"], opened["conflicts"]) == (2, 1, 1)
    assert not report["inOrder"]
    rows = pq.read_table(output).to_pylist()
    found = [(row["finding"], row["key_stream"]) for row in rows]
    assert sorted(found, key=str) == [
        ("conflict", "account-123"),
        ("conflict", "accountTransaction-123+d1"),
        ("missing", "accountTransaction-123+lost"),
        ("multiple", "accountTransaction-123+d1"),
        ("multiple", "accountTransaction-123+d1"),
        ("orphan", "accountTransaction-123+o1"),
        ("orphan", "accountTransaction-123+o2\u202e<b>"),
        ("without-cause", None),
    ]
    assert report["effects"] == [
        {
            "category": "accountTransaction",
            "reserved": 6,
            "handled": 2,
            "silent": 0,
            "pending": 4,
            "unhandled": 0,
            "dead": 0,
        }
    ]
    assert report["events"] == {
        "category": "account",
        "events": 4,
        "causes": 3,
        "effectTwice": 0,
        "withoutCause": 1,
    }
    assert len(report["samples"]) == len(rows)
    assert {latency["type"] for latency in report["latency"]} == {
        None,
        "Deposit",
        "Withdraw",
        "Open",
    }
    assert report["reissues"]["longestGapKey"] is not None
    assert sum(volume["commands"] for volume in report["volume"]) == 10
    assert "need attention" in (tmp_path / "page.html").read_text()
    assert 'failures="5"' in (tmp_path / "junit.xml").read_text()
    assert "reservation_reconcile_in_order" in (tmp_path / "metrics.prom").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "findings",
        "junit.xml",
        "metrics.prom",
        "page.html",
        "state",
    ]
    for folder in (output, tmp_path / "state"):
        paths = [folder, *folder.rglob("*")]
        modes = {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in paths}
        assert modes == {(True, 0o700), (False, 0o600)}


@pytest.mark.long
def test_the_table_is_for_people(planted, database_url):
    """The table shows counts, samples and a verdict, with control characters escaped."""
    done = run_cli("reconcile", "bank:account", "--database-url", database_url)
    assert done.returncode == 1
    assert "Not in order" in done.stdout
    assert "more than one message" in done.stdout
    assert "\u202e" not in done.stdout
    assert "\x1b" not in done.stdout  # no colours where there is no terminal


@pytest.mark.long
def test_a_store_in_order_exits_with_0(connection, store, database_url):
    """Duplicates and unread messages are in order: the status is 0."""
    store.write([open_(), deposit(), deposit(), withdraw()], COMMANDS)
    drain(connection)
    store.write([deposit("d2"), open_()], COMMANDS)
    done = run_cli("reconcile", "bank:account", "--json", "--database-url", database_url)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    (counts,) = report["categories"]
    assert report["inOrder"]
    assert (counts["reserved"], counts["pending"], counts["duplicates"]) == (2, 1, 1)
    assert done.stderr == ""


def test_nothing_written_is_overwritten(database_url, tmp_path):
    """An existing output folder is refused before Spark starts."""
    done = invoke_cli(
        "reconcile", "bank:account", "--database-url", database_url, "--output", str(tmp_path)
    )
    assert done.returncode == 2
    assert "exists already" in done.stderr
    (tmp_path / "file").touch()
    for impossible in (tmp_path / "file" / "x", "/proc/x"):
        done = invoke_cli(
            "reconcile", "bank:account", "--database-url", database_url, "--output", str(impossible)
        )
        assert done.returncode == 2
        assert f"The output folder {impossible} cannot be made" in done.stderr


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--output", "is a symbolic link to what does not exist; remove the link"),
        ("--state", "is not empty and no state: it holds 'run-7'; name another folder"),
        ("--to", "is not empty and no archive: it holds 'run-7'; name another folder"),
    ],
)
def test_an_unwritable_output_is_refused_before_the_job(tmp_path, option, said):
    """An unwritable output is refused before Spark or the database is used."""
    place = tmp_path / "place"
    if option == "--output":
        place.symlink_to(tmp_path / "nothing")
    else:
        (place / "run-7").mkdir(parents=True)
        (place / "run-7" / "model").touch()
    command = ["archive", "--before", "1d"] if option == "--to" else ["reconcile"]
    address = "postgresql://127.0.0.1:1/none"
    done = invoke_cli(*command, "bank:account", option, str(place), "--database-url", address)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    if option != "--output":
        assert [path.name for path in place.rglob("*")] == ["run-7", "model"]


@pytest.mark.parametrize(
    ("version", "problem"),
    [(None, "there is none"), ("11.0.2", "is Java 11"), ("1.8.0_352", "is Java 8")],
)
def test_java_that_is_missing_or_too_old_is_named(database_url, tmp_path, version, problem):
    """Missing or old Java is reported in one line with the package to install."""
    if version is not None:
        java = tmp_path / "java"
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        java.chmod(java.stat().st_mode | stat.S_IXUSR)
    environment = {"PATH": str(tmp_path), "JAVA_HOME": ""}
    done = run_cli("reconcile", "bank:account", "--database-url", database_url, env=environment)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert problem in line
    assert "openjdk-17-jre-headless" in line


WITHIN = f"""
import sys; sys.path.append({str(EXAMPLES)!r})
from bank.messages import Deposit, Withdraw
from tests.idempotence import purse

component = purse()
component.reserve(Deposit, key="deposit_id", volatile="time")
component.reserve(Withdraw, key=lambda command: command.withdrawal_id)
"""


@pytest.mark.long
def test_copies_in_the_command_category_are_distinguished_from_the_commands(
    connection, store, database_url, tmp_path
):
    """Findings are the same for copies within the command category."""
    component = purse()
    component.reserve(Deposit, key="deposit_id", volatile="time")
    component.reserve(Withdraw, key="withdrawal_id")
    store.write([deposit("d1"), deposit("d1", time=LATER), deposit("d1", "99")], PURSE)
    store.write([withdraw("w1"), withdraw("w1"), deposit("lost")], PURSE)
    # What a sender says of its commands makes no copies of them, whoever takes their keys.
    said = Metadata(
        local_properties={"reserved": True}, causation_message_stream_name="purse:command-9"
    )
    store.write([deposit("said"), withdraw("said too")], PURSE, metadata=said)
    drained(connection, component)
    connection.execute(
        "DELETE FROM message_store.messages WHERE stream_name = %s", [f"{PURSE}+lost"]
    )
    store.write(withdraw("p1"), PURSE)
    copied = Metadata(local_properties={"reserved": True}, causation_message_stream_name=PURSE)
    store.write(deposit("orphan"), f"{PURSE}+orphan", metadata=copied)
    (tmp_path / "within.py").write_text(WITHIN)
    done = run_cli(
        "reconcile",
        "within:component",
        "--json",
        "--app-dir",
        str(tmp_path),
        env={"RESERVATION_DATABASE_URL": database_url},
    )
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["categories"] == [
        {
            "commandCategory": "purse:command",
            "reservationCategory": "purse:command",
            "commands": 9,
            "keys": 6,
            "keyless": 0,
            "duplicates": 2,
            "reserved": 4,
            "missing": 1,
            "pending": 1,
            "dead": 0,
            "orphans": 1,
            "multiple": 0,
            "conflicts": 1,
            "wrongType": 0,
            "conflictMismatches": 0,
            "corrected": 0,
        }
    ]


RENAMED = f"""
import sys; sys.path.append({str(EXAMPLES)!r})
from bank.messages import Deposit
from tests.idempotence import purse

component = purse()
component.reserve(
    Deposit, into="purseTransaction", entity="account_id", key="deposit_id", volatile="time",
    formerly="deposit_id",
)
"""


@pytest.mark.long
def test_a_reservation_under_its_former_name_is_that_of_the_key(
    connection, store, database_url, tmp_path
):
    """A reservation under its former name is found; two names for a key are two."""
    component = purse()
    component.reserve(Deposit, into="purseTransaction", key="deposit_id", volatile="time")
    store.write([deposit("d1"), deposit("d2")], PURSE)
    drained(connection, component)
    renamed = purse()
    renamed.reserve(
        Deposit,
        into="purseTransaction",
        entity="account_id",
        key="deposit_id",
        volatile="time",
        formerly="deposit_id",
    )
    store.write([deposit("d1", time=LATER), deposit("d3"), deposit("d2", "99")], PURSE)
    drained(connection, renamed)
    (tmp_path / "renamed.py").write_text(RENAMED)

    def reconciled(status):
        done = run_cli(
            "reconcile",
            "renamed:component",
            "--json",
            "--app-dir",
            str(tmp_path),
            env={"RESERVATION_DATABASE_URL": database_url},
        )
        assert done.returncode == status, done.stderr
        (pair,) = json.loads(done.stdout)["categories"]
        return {name: count for name, count in pair.items() if count and "Category" not in name}

    in_order = {"commands": 5, "keys": 3, "duplicates": 1, "reserved": 3, "conflicts": 1}
    assert reconciled(1) == in_order
    store.write(deposit("d1"), "purseTransaction-123+d1")
    assert reconciled(1) == in_order | {"multiple": 1}


@pytest.mark.long
def test_a_copy_under_its_former_key_is_that_of_the_key(connection, store, database_url, tmp_path):
    """In the command category too, whichever way the rows are read."""
    component = purse()
    component.reserve(Deposit, key="deposit_id", volatile="time")
    store.write([deposit("d1"), deposit("d2")], PURSE)
    drained(connection, component)
    changed = purse()
    changed.reserve(
        Deposit, key=("account_id", "deposit_id"), volatile="time", formerly="deposit_id"
    )
    store.write([deposit("d1", time=LATER), deposit("d3"), deposit("d2", "99")], PURSE)
    drained(connection, changed)
    former = 'into="purseTransaction", entity="account_id", key="deposit_id"'
    assert former in RENAMED
    app = RENAMED.replace(former, 'key=("account_id", "deposit_id")')
    (tmp_path / "renamed.py").write_text(app)
    for state in ([], ["--state", str(tmp_path / "state")]):
        done = run_cli(
            *("reconcile", "renamed:component", "--json", "--app-dir", str(tmp_path), *state),
            env={"RESERVATION_DATABASE_URL": database_url},
        )
        assert done.returncode == 1, done.stderr
        (pair,) = json.loads(done.stdout)["categories"]
        counted = {name: count for name, count in pair.items() if count and "Category" not in name}
        assert counted == {"commands": 5, "keys": 3, "duplicates": 1, "reserved": 3, "conflicts": 1}
