"""What people have settled: corrected commands, and findings that were accepted."""

import json
import os

import pyarrow.parquet as pq
import pytest
from psycopg import conninfo, sql
from psycopg.types.json import Jsonb

from bank import account
from consumers.dead_letters import administration
from consumers.dead_letters.stored_letters import Selection
from reservation import Write
from reservation.errors import MissingRightError
from reservation.maintenance.finding_decisions import FindingError, accept, accepted, reopen
from reservation.store.schema.roles import grant
from spark_jobs.common.result import VIOLATIONS
from spark_jobs.reconciliation.reconcile import in_session
from spark_jobs.reconciliation.run import Run
from spark_jobs.report import thresholds
from spark_jobs.snapshot import snapshot as snapshots
from spark_jobs.snapshot.snapshot import exported_snapshot
from tests.bank import RESERVED, batch, drain
from tests.commands import invoke_cli
from tests.controls import COMMANDS, TIME, deposit, open_
from tests.processes import EXAMPLES, run_cli
from tests.spark.test_follow import Following

pytestmark = pytest.mark.spark

BAD = {"depositId": "d1", "accountId": "123", "amount": "a lot", "time": TIME.isoformat()}
GOOD = BAD | {"amount": 20}


def send(connection, data):
    """Write a deposit as a foreign client does."""
    connection.execute(
        "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, 'Deposit', %s)",
        [COMMANDS, Jsonb(data)],
    )


class Reconciling:
    """Runs over one store, each in the session of the tests."""

    def __init__(self, spark, database_url, folder, monkeypatch):
        self._spark, self._url = spark, database_url
        self._folder, self._monkeypatch = folder, monkeypatch

    def report(self, **options):
        """Return the report of a run."""
        run = Run(account, "bank:account", EXAMPLES, self._url, **options)
        with exported_snapshot(self._url) as snapshot:
            return in_session(run, snapshot, self._spark)

    def on_every_path(self):
        """Give the reports of a run over all rows, one by fingerprints, and one of a state."""
        yield self.report()
        with self._monkeypatch.context() as patched:
            patched.setattr(snapshots, "_SMALL", 0)
            yield self.report()
        yield self.report(state=self._folder / "state", verify=True)


@pytest.fixture
def reconciling(spark, spark_database_url, tmp_path, monkeypatch):
    return Reconciling(spark, spark_database_url, tmp_path, monkeypatch)


@pytest.mark.long
def test_a_corrected_command_is_neither_a_conflict_nor_a_second_message(
    spark_connection, spark_store, spark_database_url, reconciling
):
    """Nor is what the sender sent instead of it, although the consumer took that for a conflict."""
    spark_store.write(open_(), COMMANDS)
    send(spark_connection, BAD)
    drain(spark_connection)
    (dead,) = administration.find(spark_connection, Selection())
    send(spark_connection, GOOD)
    drain(spark_connection)
    for report in reconciling.on_every_path():
        assert (report.count("conflict"), report.categories[0].corrected) == (1, 0)

    env = {"RESERVATION_DATABASE_URL": spark_database_url}
    at = str(dead.global_position)
    named = ["correct", "bank:account", at, "--data", "-", "--reason", "a slip"]
    for arguments in (named, ["discard", str(dead.global_position + 1), "--yes"]):
        done = invoke_cli("dead-letters", *arguments, env=env, input=json.dumps(GOOD))
        assert done.returncode == 0, done.stderr
    drain(spark_connection)
    for data in (BAD, GOOD):
        send(spark_connection, data)
    drain(spark_connection)
    for report in reconciling.on_every_path():
        (counted,) = [one for one in report.categories if not one.initiates]
        assert (counted.commands, counted.keys, counted.duplicates) == (4, 1, 3)
        assert (counted.reserved, counted.corrected) == (1, 1)
        assert [name for name in VIOLATIONS if report.count(name)] == []
        assert report.effects[0].handled == report.effects[0].reserved == 1
        assert thresholds.reached(report) == ()

    send(spark_connection, BAD | {"amount": 30})
    drain(spark_connection)
    for report in reconciling.on_every_path():
        assert [name for name in VIOLATIONS if report.count(name)] == ["conflict"]


@pytest.fixture
def conflict(spark_connection, spark_store):
    """Have a conflict that was looked at and discarded; return what plants another one."""

    def plant(amount):
        spark_store.write(deposit(amount=amount), COMMANDS)
        batch(spark_connection, "account:command").run(100)
        spark_connection.execute("UPDATE reservation.dead_letters SET state = 'discarded'")

    spark_store.write([open_(), deposit()], COMMANDS)
    plant("99")
    drain(spark_connection)
    return plant


@pytest.mark.long
def test_an_accepted_finding_is_shown_apart_and_a_new_one_counts(
    spark_connection, spark_database_url, reconciling, conflict, tmp_path
):
    """Until it is reopened; nothing of what was decided is lost."""
    (found,) = reconciling.report().findings
    (row,) = spark_connection.execute(
        "SELECT id::text, 'conflict-' || global_position || '-' || left(encode(sha256("
        "convert_to('account' || E'\\n' || id, 'UTF8')), 'hex'), 8) "
        "FROM message_store.messages WHERE data->>'amount' = '99'"
    ).fetchall()
    assert (found.message_id, found.id) == row
    accept(spark_connection, [found.id], " looked at ", VIOLATIONS)
    for report in reconciling.on_every_path():
        assert (report.findings, thresholds.reached(report)) == ([], ())
        assert report.categories[0].conflicts == 1
        assert report.accepted_counts == {"conflict": 1}
        (one,) = report.accepted
        assert (one.finding, one.reason) == (found, "looked at")
        ((user,),) = spark_connection.execute("SELECT session_user::text").fetchall()
        assert one.accepted_by == user

    conflict("98")
    report = reconciling.report(findings=tmp_path / "findings")
    assert [one.finding for one in report.findings] == ["conflict"]
    assert [str(one) for one in thresholds.reached(report)] == ["1 conflict (allowed: 0)"]
    rows = {row["id"]: row for row in pq.read_table(tmp_path / "findings").to_pylist()}
    assert {id_: row["is_accepted"] for id_, row in rows.items()} == {
        found.id: True,
        report.findings[0].id: False,
    }

    reopen(spark_connection, [found.id])
    report = reconciling.report()
    assert (report.accepted, report.accepted_counts) == ([], {})
    assert thresholds.reached(report)[0].count == 2
    env = {"RESERVATION_DATABASE_URL": spark_database_url}
    listed = json.loads(invoke_cli("findings", "list", "--all", "--json", env=env).stdout)
    assert [one["accepted"] for one in listed["decisions"]] == [True, False]


def test_a_stream_with_several_messages_too_many_counts_until_all_of_them_are_accepted(
    spark_connection, spark_store, reconciling, conflict
):
    """It is one finding in the counts, and a row for each message."""
    copy = Write(deposit(), f"{RESERVED}-123+d1")
    spark_store.write_batch([copy, copy])
    rows = [one for one in reconciling.report().findings if one.finding == "multiple"]
    assert len(rows) == 2
    accept(spark_connection, [rows[0].id], "looked at", VIOLATIONS)
    assert reconciling.report().outstanding("multiple") == 1
    accept(spark_connection, [rows[1].id], "looked at", VIOLATIONS)
    report = reconciling.report()
    assert (report.count("multiple"), report.outstanding("multiple")) == (1, 0)


@pytest.mark.long
def test_a_follower_reports_that_a_violation_was_accepted(
    spark, spark_connection, spark_database_url, conflict, tmp_path
):
    """It stands no longer. One that is reopened is reported again."""
    following = Following(spark, spark_database_url, tmp_path / "state")
    with following.started() as follower:
        assert following.round(0) == []
        following.round(100)
        following.heard.take()
        assert follower.standing == {"conflict": 1}
        (found,) = following.everything().findings
        accept(spark_connection, [found.id], "looked at", VIOLATIONS)
        with exported_snapshot(spark_database_url) as snapshot:
            look = follower.look_at(snapshot)
        follower.round(look)
        (event,) = following.heard.events
        assert (event.is_accepted, event.violation.id) == (True, found.id)
        assert follower.standing == {}
        following.heard.take()
        reopen(spark_connection, [found.id])
        following.round(200)
        assert following.round(400) == [(False, "conflict")]


@pytest.mark.long
def test_the_exit_status_is_that_of_what_nobody_has_accepted(
    connection, store, database_url, tmp_path
):
    """From the command that finds it, by the one that accepts it, to the one that is green."""
    store.write([open_(), deposit(), deposit(amount="99")], COMMANDS)
    drain(connection)
    env = {"RESERVATION_DATABASE_URL": database_url}
    found = run_cli("reconcile", "bank:account", "--json", env=env)
    assert found.returncode == 1
    (sample,) = json.loads(found.stdout)["samples"]
    done = invoke_cli("findings", "accept", sample["id"], "--reason", "looked at", env=env)
    assert (done.returncode, done.stdout) == (0, f"Accepted: {sample['id']}.\n")
    html = tmp_path / "report.html"
    green = run_cli("reconcile", "bank:account", "--html", str(html), env=env)
    assert green.returncode == 0, green.stderr
    assert sample["id"] in green.stdout
    assert "looked at" in green.stdout
    assert "All findings were accepted." in html.read_text()


def test_only_an_operator_accepts(connection, database_url):
    """The server refuses everybody else, and notes who it was."""
    role = f"test_operator_{os.getpid()}"
    finding = "conflict-4711-0123abcd"
    grant(connection, "operator", role)
    try:
        connection.execute(sql.SQL("ALTER ROLE {} LOGIN PASSWORD 's'").format(sql.Identifier(role)))
        own = conninfo.make_conninfo(database_url, user=role, password="s")
        env = {"RESERVATION_DATABASE_URL": own}
        done = invoke_cli("findings", "accept", finding, "--reason", "settled", env=env)
        assert (done.returncode, done.stderr) == (0, "")
        (decision,) = accepted(connection)
        assert (decision.decided_by, decision.reason) == (role, "settled")
        assert finding in invoke_cli("findings", "list", env=env).stdout
        for kind in ("consumer", "auditor"):
            grant(connection, kind, role)
            refused = invoke_cli("findings", "reopen", finding, env=env)
            assert refused.returncode == 2
            assert f"`reservation store grants operator {role}`" in refused.stderr
            assert finding in invoke_cli("findings", "list", env=env).stdout
    finally:
        connection.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role)))
        connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))
    connection.execute("SET ROLE message_store")
    with pytest.raises(MissingRightError, match="may not accept"):
        reopen(connection, [finding])


def test_a_decision_that_is_none_is_refused(connection):
    """All of several, or none."""
    finding, other = "conflict-1-0123abcd", "missing-2-0123abcd"
    accept(connection, [finding], "settled", VIOLATIONS)
    for wrong, problem in (
        ([other, finding], "accepted already, by"),
        ([other, "conflict-1"], "is not the id of a finding"),
        ([other, "pending-1-0123abcd"], "is not the id of a finding"),
    ):
        with pytest.raises(FindingError, match=problem):
            accept(connection, wrong, "settled", VIOLATIONS)
    with pytest.raises(FindingError, match="needs a reason"):
        accept(connection, [other], " ", VIOLATIONS)
    with pytest.raises(FindingError, match="is not accepted"):
        reopen(connection, [finding, other])
    assert [one.finding for one in accepted(connection)] == [finding]
