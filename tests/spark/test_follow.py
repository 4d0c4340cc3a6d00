"""Following a store round by round: what persists is reported once, and once when it ends."""

from dataclasses import asdict

import pytest

from spark_jobs.common.result import Finding
from spark_jobs.follow import persistence
from spark_jobs.reconciliation.reconcile import in_session
from spark_jobs.snapshot.progress import Consumed, Progress
from spark_jobs.snapshot.snapshot import exported_snapshot
from tests.bank import drain
from tests.controls import COMMANDS, deposit, open_
from tests.spark.following import GRACE, Following, Heard
from tests.spark.messages import START

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]  # of several runs each

FINDING_SCHEMA = (
    "id string, finding string, command_category string, reservation_category string, "
    "key_stream string, stream_name string, position bigint, global_position bigint, "
    "type string, message_id string, time timestamp"
)


@pytest.fixture
def following(spark, spark_database_url, tmp_path):
    """Give rounds with a state of their own."""
    return Following(spark, spark_database_url, tmp_path / "state")


def pass_over(connection, category="account:command"):
    """Let a consumer have read what it has not handled; return where it was."""
    (was,) = connection.execute(
        "SELECT position FROM reservation.positions WHERE category = %s", [category]
    ).fetchone()
    (last,) = connection.execute(
        "SELECT max(global_position) FROM message_store.messages "
        "WHERE message_store.category(stream_name) = %s",
        [category],
    ).fetchone()
    move(connection, last, category)
    return was


def move(connection, position, category="account:command"):
    """Move a consumer."""
    connection.execute(
        "UPDATE reservation.positions SET position = %(position)s, message_id = ("
        "SELECT id FROM message_store.messages WHERE global_position = %(position)s) "
        "WHERE category = %(category)s",
        {"position": position, "category": category},
    )


def same_counts(report, other):
    """Return whether two runs counted the same."""
    return (report.categories, report.effects, report.events) == (
        other.categories,
        other.effects,
        other.events,
    )


@pytest.mark.long
def test_a_lasting_violation_is_reported_once_and_once_more_when_it_ends(
    following, spark_store, spark_connection
):
    """A violation is reported after the grace period; one that ends earlier never is."""
    spark_store.write([open_(), deposit("d1")], COMMANDS)
    drain(spark_connection)
    spark_store.write([deposit("lost"), deposit("brief")], COMMANDS)
    was = pass_over(spark_connection)
    with following.started() as follower:
        assert following.round(0) == []
        spark_store.write(deposit("brief"), "accountTransaction-123+brief")
        assert following.round(30) == []
        assert following.round(59.9) == []
        assert following.round(60) == [(False, "missing")]
        assert follower.standing == {"missing": 1}
        assert following.round(500) == []
        move(spark_connection, was)
        drain(spark_connection)
        assert following.round(510) == [(True, "missing")]
        assert follower.standing == {}
        assert (follower.reported, follower.mended) == (1, 1)
        assert same_counts(follower.report, following.everything())


@pytest.mark.long
def test_a_restart_goes_on_with_what_was_seen_and_reported(
    following, spark_store, spark_connection
):
    """After a restart the grace period goes on, and nothing is reported twice."""
    spark_store.write([open_(), deposit("d1")], COMMANDS)
    drain(spark_connection)
    spark_store.write(deposit("d1", amount="99"), COMMANDS)
    spark_store.write(deposit("orphan"), "accountTransaction-123+orphan")
    with following.started():
        assert following.round(0) == []
    spark_store.write(deposit("d2"), COMMANDS)
    with following.started():
        assert following.round(61) == [(False, "conflict"), (False, "orphan")]
    with following.started() as follower:
        assert following.round(200) == []
        assert follower.standing == {"conflict": 1, "orphan": 1}
        assert same_counts(follower.report, following.everything())


class Dies(Heard):
    """An audience that does not come to the end of a round."""

    def happened(self, event):
        raise KeyboardInterrupt


@pytest.mark.long
def test_a_round_that_dies_is_repeated_as_a_whole(
    following, spark, spark_store, spark_database_url
):
    """A round that dies is repeated as a whole and counts each message once."""
    spark_store.write([open_(), deposit("d1")], COMMANDS)
    spark_store.write(deposit("orphan"), "accountTransaction-123+orphan")
    with following.started():
        following.round(0)
    spark_store.write([deposit("d2"), deposit("d2")], COMMANDS)
    state = following.run.state
    with following.started(Dies()), pytest.raises(KeyboardInterrupt):
        following.round(60)
    assert (state / "CURRENT").read_text().split()[0] == "run-000001"
    assert (state / "run-000002" / "fingerprints" / "rows.parquet").exists()
    with following.started():
        assert following.round(60) == [(False, "orphan")]
    everything = following.everything()
    # A plain run may go on with the state, and a follower after it.
    with exported_snapshot(spark_database_url) as snapshot:
        assert same_counts(in_session(following.run, snapshot, spark), everything)
    with following.started() as follower:
        assert following.round(70) == []
        assert same_counts(follower.report, everything)
        assert follower.standing == {"orphan": 1}


def test_the_grace_of_a_missing_command_counts_from_when_it_was_stored(spark):
    """A missing command counts from when it was stored, anything else from when it was seen."""
    rows = [
        Finding(f"id{n}", finding, "c", "r", None, "s-1", 0, n, "T", f"id{n}", START)
        for n, finding in enumerate(["missing", "orphan", "unhandled"])
    ]
    findings = spark.createDataFrame([asdict(row) for row in rows], FINDING_SCHEMA)
    now = START + 2 * GRACE
    for progress, due in (
        (Progress({"c": Consumed(None, START + GRACE), "r": Consumed(7)}), {"missing"}),
        (Progress({"c": Consumed(7), "r": Consumed(None, START + GRACE)}), {"unhandled"}),
    ):
        noted = persistence.noted(findings, None, progress, now, GRACE)
        found = list(persistence.events(noted, None, now))
        assert {event.violation.finding for event in found} == due
        assert {event.since for event in found} == {START}
        assert {event.violation.time for event in found} == {START}
