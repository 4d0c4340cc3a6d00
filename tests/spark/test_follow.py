"""Following a store round by round: what lasts is told once, and what is mended after that."""

from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import timedelta

import pytest

from bank import account
from spark_jobs.common.result import Finding
from spark_jobs.follow import persistence
from spark_jobs.follow.rounds import Follower
from spark_jobs.reconciliation import stored_state
from spark_jobs.reconciliation.run import Run, in_session, judged_by
from spark_jobs.snapshot.progress import Consumed, Progress
from spark_jobs.snapshot.snapshot import exported_snapshot
from tests.bank import drain
from tests.controls import COMMANDS, deposit, open_
from tests.processes import EXAMPLES
from tests.spark.messages import START

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]  # of several runs each

GRACE = timedelta(seconds=60)
FINDING_SCHEMA = (
    "id string, finding string, command_category string, reservation_category string, "
    "key_stream string, stream_name string, position bigint, global_position bigint, "
    "type string, message_id string, time timestamp"
)


class Heard:
    """An audience that keeps what it is told."""

    def __init__(self):
        self.events = []

    def happened(self, event):
        self.events.append(event)

    def take(self):
        """Return what was told since the last time."""
        events, self.events = self.events, []
        return [(event.is_mended, event.violation.finding) for event in events]


class Following:
    """Rounds over one database and one state, at times after the first look."""

    def __init__(self, spark, database_url, folder, component=account):
        self.run = Run(component, "bank:account", EXAMPLES, database_url, grace=GRACE, state=folder)
        self.heard = Heard()
        self.follower = None
        self._spark = spark
        self._began = None

    @contextmanager
    def started(self, heard=None):
        """Start a follower that goes on with the state."""
        declaration = judged_by(self.run)
        name = self.run.component.name
        with stored_state.opened(self.run.state, name, declaration) as state:
            self.follower = Follower(self.run, state, self._spark, heard or self.heard)
            yield self.follower

    def round(self, seconds):
        """Do a round so many seconds after the first; return what is told."""
        with exported_snapshot(self.run.database_url) as snapshot:
            self._began = self._began or snapshot.time
            look = self.follower.look_at(
                replace(snapshot, time=self._began + timedelta(seconds=seconds))
            )
        self.follower.round(look)
        return self.heard.take()

    def everything(self):
        """Return what a run over everything finds now."""
        with exported_snapshot(self.run.database_url) as snapshot:
            return in_session(replace(self.run, state=None), snapshot, self._spark)


@pytest.fixture
def following(spark, spark_database_url, tmp_path):
    """Give rounds with a state of their own."""
    return Following(spark, spark_database_url, tmp_path / "state")


def pass_over(connection, category="account:command"):
    """Let a consumer have read what it has not dealt with; return where it was."""
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
    """Tell whether two runs counted the same."""
    return (report.categories, report.effects, report.events) == (
        other.categories,
        other.effects,
        other.events,
    )


def test_what_lasts_is_told_once_and_once_more_when_it_is_mended(
    following, spark_store, spark_connection
):
    """The grace passes without new rows, and what is mended before is never spoken of."""
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


def test_a_restart_goes_on_with_what_was_seen_and_told(following, spark_store, spark_connection):
    """What was first seen before it is told in time, and what was told is not told again."""
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


def test_a_round_that_dies_is_done_again_as_a_whole(
    following, spark, spark_store, spark_database_url
):
    """It has read its messages, and they are read again; each is counted once."""
    spark_store.write([open_(), deposit("d1")], COMMANDS)
    spark_store.write(deposit("orphan"), "accountTransaction-123+orphan")
    with following.started():
        following.round(0)
    spark_store.write([deposit("d2"), deposit("d2")], COMMANDS)
    state = following.run.state
    with following.started(Dies()), pytest.raises(KeyboardInterrupt):
        following.round(60)
    assert (state / "CURRENT").read_text().split()[0] == "run-000001"
    assert (state / "run-000002" / "effects" / "rows" / "_SUCCESS").exists()
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


def test_where_age_says_what_was_read_the_grace_is_over_with_the_verdict(spark):
    """A command that is missing was so since it was stored; anything else since it was seen."""
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
