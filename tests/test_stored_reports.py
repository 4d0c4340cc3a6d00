"""Reports of reconciliations in the store: who may keep them, which, and for how long."""

import dataclasses
import json
import os
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from psycopg import conninfo, errors, sql

from cli.spark.execution.reconcile import _store
from reservation import install
from reservation.errors import DatabaseUnavailableError, MissingRightError
from reservation.maintenance import stored_reports
from reservation.maintenance.pruning import prune_reports
from reservation.maintenance.stored_reports import NewReport, check_may_store, page, read, store
from reservation.postgres.connection import connect
from reservation.store.schema.roles import grant
from tests.commands import invoke_cli

CONTENT = {
    "component": "account",
    "time": "2026-01-02T03:04:05.678900+00:00",
    "inOrder": False,
    "categories": [
        {"commandCategory": "account:command", "reservationCategory": "accountTransaction"}
    ],
    "initiations": [{"commandCategory": "account:command", "reservationCategory": "account"}],
    "effects": [{"category": "accountTransaction"}],
    "subscriptions": [{"category": "payment"}],
    "events": {"category": "account"},
    "samples": [{"id": "conflict-1-9f8e7d6c"}],
    "accepted": [],
}
FUNCTION = "SELECT reservation.store_report(%s, %s, %s, '{}', %s, %s, %s, '0.1.0')"


def report(**changes):
    """Return a report with one conflict."""
    made = NewReport(CONTENT, {"conflict": 1}, {}, "full", 17, timedelta(seconds=1.5))
    return dataclasses.replace(made, **changes)


@pytest.fixture
def login(connection, database_url):
    """Give a function that makes a role of a kind, and returns the database's address for it."""
    names = []

    def make(kind, *categories):
        name = f"reports_{os.getpid()}_{len(names)}_{kind}"
        names.append(name)
        grant(connection, kind, name, categories)
        altered = sql.SQL("ALTER ROLE {} LOGIN PASSWORD 'secret'").format(sql.Identifier(name))
        connection.execute(altered)
        return conninfo.make_conninfo(database_url, user=name, password="secret")

    yield make
    for name in names:
        for statement in ("DROP OWNED BY {}", "DROP ROLE {}"):
            connection.execute(sql.SQL(statement).format(sql.Identifier(name)))


def test_an_auditor_stores_a_report_and_reads_it_again(connection, login):
    """What is stored is what was printed, with who stored it and what it was of."""
    address = login("auditor")
    check_may_store(address)
    store(address, report())
    with connect(address, autocommit=True) as auditor:
        (found,) = page(auditor, "account", 10)
        assert stored_reports.components(auditor) == ["account"]
        again, content = read(auditor, found.number)
    assert again == found
    assert json.loads(content) == CONTENT
    assert found.stored_by == conninfo.conninfo_to_dict(address)["user"]
    assert found.time == datetime(2026, 1, 2, 3, 4, 5, 678900, tzinfo=UTC)
    assert found.categories == ["account", "account:command", "accountTransaction", "payment"]
    assert (found.findings, found.accepted) == ({"conflict": 1}, {})
    assert (found.mode, found.up_to, found.in_order) == ("full", 17, False)
    assert found.duration == timedelta(seconds=1.5)


def test_a_report_that_is_stored_again_is_there_once(connection, database_url):
    """So an attempt whose answer was lost can be repeated; and nobody replaces a report."""
    once = report()
    store(database_url, once)
    store(database_url, dataclasses.replace(once, findings={}))
    (found,) = page(connection, "account", 10)
    assert found.findings == {"conflict": 1}


def test_an_auditor_writes_through_the_function_and_in_no_other_way(login):
    """It can insert no row itself, and change or remove none."""
    with connect(login("auditor"), autocommit=True) as auditor:
        for statement in (
            "INSERT INTO reservation.reconciliation_reports DEFAULT VALUES",
            "UPDATE reservation.reconciliation_reports SET in_order = true",
            "DELETE FROM reservation.reconciliation_reports",
            "TRUNCATE reservation.reconciliation_reports",
            "SELECT nextval('reservation.reconciliation_reports_number_seq')",
            "INSERT INTO reservation.letter_decisions (reason) VALUES ('x')",
        ):
            with pytest.raises(errors.InsufficientPrivilege):
                auditor.execute(statement)


@pytest.mark.parametrize(
    ("kind", "categories"),
    [("sender", ["account:command"]), ("consumer", []), ("operator", [])],
)
def test_nobody_else_stores_reports(login, kind, categories):
    """Another role is refused before the work begins, with the command that helps."""
    address = login(kind, *categories)
    role = conninfo.conninfo_to_dict(address)["user"]
    with (
        connect(address, autocommit=True) as connection,
        pytest.raises(errors.InsufficientPrivilege),
    ):
        connection.execute(FUNCTION, [uuid.uuid4(), "{}", "{}", "full", 1, timedelta(0)])
    if kind != "sender":  # which may not read which version the schema has either
        with pytest.raises(MissingRightError, match=f"store grants auditor {role}`"):
            check_may_store(address)


def test_message_dbs_role_stores_no_report(connection):
    """The role of Message DB's clients has the rights of a consumer, and this is none of them."""
    connection.execute("SET ROLE message_store")
    with pytest.raises(errors.InsufficientPrivilege, match="store_report"):
        connection.execute(FUNCTION, [uuid.uuid4(), "{}", "{}", "full", 1, timedelta(0)])


@pytest.mark.parametrize(
    "changes",
    [
        {"content": "[]"},
        {"content": "null"},
        {"content": json.dumps(CONTENT | {"component": ""})},
        {"content": json.dumps(CONTENT | {"component": 1})},
        {"content": json.dumps(CONTENT | {"time": "infinity"})},
        {"content": json.dumps(CONTENT | {"time": "yesterday"})},
        {"content": json.dumps(CONTENT | {"time": "2026-02-30T03:04:05+00:00"})},
        {"content": json.dumps(CONTENT | {"samples": None})},
        {"content": json.dumps({"component": "account"})},
        {"content": None},
        {"findings": "[1]"},
        {"findings": '{"conflict": -1}'},
        {"findings": '{"conflict": "1"}'},
        {"findings": json.dumps({str(n): n for n in range(5_000)})},
        {"mode": "other"},
        {"mode": None},
        {"up_to": -1},
        {"duration": "-1 second"},
        {"duration": "100 years"},
        {"id": None},
    ],
    ids=str,
)
def test_the_function_checks_what_it_is_given(connection, changes):
    """An auditor that calls it by hand stores nothing that is not a report."""
    given = {
        "id": uuid.uuid4(),
        "content": json.dumps(CONTENT),
        "findings": "{}",
        "mode": "full",
        "up_to": 1,
        "duration": "1 second",
    } | changes
    with pytest.raises(errors.Error) as caught:
        connection.execute(FUNCTION, list(given.values()))
    assert type(caught.value) is not errors.InternalError
    assert page(connection, "account", 10) == []


def test_a_report_that_is_too_large_is_a_warning(connection, database_url, capsys):
    """The job's report was printed, so it is not lost, and one line says why it was not stored."""
    large = CONTENT | {"accepted": [{"reason": "x" * (16 * 1024 * 1024)}]}
    assert not _store(database_url, report(report=large))
    said = capsys.readouterr().err
    assert said.startswith("Warning: the report was not stored: ")
    assert "may have 16777216" in said
    assert said.count("\n") == 1
    assert page(connection, "account", 10) == []


def test_a_database_that_is_away_is_tried_again(connection, database_url, monkeypatch):
    """A job may end just when the database fails over."""
    monkeypatch.setattr(stored_reports, "_WAITS", (0.0, 0.0))
    attempts = []

    def connecting(*arguments, **options):
        attempts.append(1)
        if len(attempts) < 3:
            raise DatabaseUnavailableError("away")
        return connect(*arguments, **options)

    monkeypatch.setattr(stored_reports, "connect", connecting)
    store(database_url, report())
    assert len(page(connection, "account", 10)) == 1


def test_a_database_that_stays_away_is_an_error(monkeypatch):
    """After some attempts the command goes on, to say so."""
    monkeypatch.setattr(stored_reports, "_WAITS", (0.0, 0.0))
    with pytest.raises(DatabaseUnavailableError):
        store("postgresql://127.0.0.1:1/none", report())


def test_pages_of_reports_go_both_ways(connection, database_url):
    """The last report comes first, of one component."""
    for n in range(5):
        store(database_url, report(up_to=n))
    store(database_url, report(report=CONTENT | {"component": "other"}))
    first = page(connection, "account", 2)
    assert [one.up_to for one in first] == [4, 3]
    second = page(connection, "account", 2, key=first[-1].number)
    assert [one.up_to for one in second] == [2, 1]
    assert page(connection, "account", 2, key=second[0].number, backward=True) == first[::-1]
    assert stored_reports.components(connection) == ["account", "other"]


def test_pruning_removes_old_reports_only(connection, database_url):
    """`prune` says what it would remove, and removes it with --apply."""
    for n in range(3):
        store(database_url, report(up_to=n))
    connection.execute(
        "UPDATE reservation.reconciliation_reports SET stored_at = now() - interval '91 days' "
        "WHERE up_to < 2"
    )
    prune = prune_reports(timedelta(days=90))
    assert sum(step.count for step in prune(connection, False, 1)) == 2
    assert len(page(connection, "account", 10)) == 3
    env = {"RESERVATION_DATABASE_URL": database_url}
    done = invoke_cli("prune", "--reports-older-than", "90d", "--apply", env=env)
    assert done.returncode == 0, done.stderr
    assert "stored reports of reconciliations: 2 reports removed" in done.stdout
    assert [one.up_to for one in page(connection, "account", 10)] == [2]


def test_an_upgrade_lets_auditors_store(connection, login):
    """A role that had every right of its kind gets this one too; installing again takes none."""
    address = login("auditor")
    install(connection)
    check_may_store(address)


def test_follow_and_storing_exclude_each_other():
    """`--follow` has no end at which there was one report."""
    done = invoke_cli("reconcile", "bank:account", "--follow", "--store-report")
    assert done.returncode == 2
    assert "leave out --store-report" in done.stderr


def test_a_role_that_may_not_store_is_refused_before_spark_starts(login):
    """One line names the command that helps, long before there is a report."""
    address = login("consumer")
    done = invoke_cli("reconcile", "bank:account", "--store-report", "--database-url", address)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "may not store reports; let the owner of the store run `reservation store" in done.stderr
