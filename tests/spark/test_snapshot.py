"""How long a run holds its snapshot of the store: until it has read it, and not to its end."""

import dataclasses
from datetime import UTC, datetime, timedelta

import pytest

from bank import account
from reservation.errors import DatabaseUnavailableError
from spark_jobs.jobs import archive as archiving
from spark_jobs.reconciliation import opening, reconcile
from spark_jobs.reconciliation.reconcile import in_session
from spark_jobs.reconciliation.run import Run
from spark_jobs.reconciliation.state.incremental import IncrementalRun
from spark_jobs.report.as_json import as_json
from spark_jobs.snapshot.snapshot import exported_snapshot
from tests.bank import drain
from tests.controls import COMMANDS, deposit, open_
from tests.processes import EXAMPLES

pytestmark = pytest.mark.spark

HELD = """
SELECT count(*) FROM pg_stat_activity
WHERE application_name IN ('reservation snapshot', 'reservation spark')
  AND datname = current_database() AND backend_xmin IS NOT NULL
"""


@pytest.fixture
def is_held(spark_connection):
    """Return a function that says whether anything of a run holds a snapshot of the store."""

    def look():
        (count,) = spark_connection.execute(HELD).fetchone()
        return count > 0

    return look


@pytest.fixture
def store(spark_store, spark_connection):
    """Store commands that were handled, and one that was not read."""
    for command in (open_(), deposit("a")):
        spark_store.write(command, COMMANDS)
    drain(spark_connection)
    spark_store.write(deposit("b"), COMMANDS)


@pytest.fixture
def observed(monkeypatch, is_held):
    """Return a function that has a step of a run note whether a snapshot is held as it begins."""

    def observe(where, name):
        step, found = getattr(where, name), []

        def noted(*arguments, **options):
            found.append(is_held())
            return step(*arguments, **options)

        monkeypatch.setattr(where, name, noted)
        return found

    return observe


def reconciled(spark, url, **options):
    """Return the report of a run."""
    run = Run(account, "bank:account", EXAMPLES, url, **options)
    with exported_snapshot(url) as snapshot:
        return in_session(run, snapshot, spark)


@pytest.mark.usefixtures("store")
def test_the_snapshot_is_released_before_the_findings_are_sorted(
    spark, spark_database_url, is_held, observed
):
    """Nothing is held while what was found is sorted, and the report says how long it was."""
    sorting = observed(reconcile, "samples")
    judging = observed(opening.FullRun, "take")
    began = datetime.now(UTC)
    report = reconciled(spark, spark_database_url)
    assert (judging, sorting) == ([True, True], [False])
    assert timedelta() < report.snapshot_held < datetime.now(UTC) - began
    assert as_json(report, ())["snapshotHeldSeconds"] == report.snapshot_held.total_seconds()
    assert not is_held()


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("verify", [False, True])
def test_the_snapshot_is_released_before_the_state_is_completed(
    spark, spark_database_url, tmp_path, observed, verify
):
    """Nothing is held while a state is completed; a comparison with the store needs it longer."""
    sorting = observed(reconcile, "samples")
    completing = observed(IncrementalRun, "commit")
    report = reconciled(spark, spark_database_url, state=tmp_path / "state", verify=verify)
    assert (sorting, completing) == ([verify], [False])
    assert report.snapshot_held > timedelta()


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("state", [False, True])
def test_details_are_read_under_the_snapshot(spark, spark_database_url, tmp_path, observed, state):
    """What is measured in detail is read from the store once more, with a state too."""
    options = {"state": tmp_path / "state"} if state else {}
    measuring = observed(reconcile, "with_latency")
    report = reconciled(spark, spark_database_url, details=True, **options)
    assert measuring == [True]
    assert [one.count for one in report.latency if one.stage == "whole"] != []


@pytest.mark.usefixtures("store")
def test_an_archive_is_read_back_without_the_snapshot(
    spark, spark_database_url, tmp_path, observed
):
    """Nothing is held while what was archived is compared with the sums of the store."""
    verifying = observed(archiving, "verified")
    before = datetime.now(UTC) + timedelta(days=1)
    with exported_snapshot(spark_database_url) as snapshot:
        result = archiving.in_session(account, tmp_path / "archive", before, snapshot, spark)
    assert verifying == [False]
    assert result.differences == []
    assert result.snapshot_held > timedelta()


def test_a_released_snapshot_cannot_be_read(spark_connection, spark_database_url):
    """What would be read after the release is an error, and not another moment of the store."""
    with exported_snapshot(spark_database_url) as snapshot:
        held = snapshot.release()
        with pytest.raises(DatabaseUnavailableError):
            snapshot.head("account:command")
        assert snapshot.release() == held
        assert dataclasses.replace(snapshot).release() == held
