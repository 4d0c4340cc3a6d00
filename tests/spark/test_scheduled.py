"""The reconciliation of commands whose handlers schedule messages."""

from operator import attrgetter
from pathlib import Path

import pytest

from reservation import Cancellation, MessageStore
from reservation.testing import pass_time
from spark_jobs.reconciliation.reconcile import in_session
from spark_jobs.reconciliation.run import Run
from spark_jobs.snapshot.snapshot import exported_snapshot
from tests import unpaid
from tests.bank import drain
from tests.test_scheduling import rows
from tests.unpaid import SENT, Place

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

APP_DIR = Path(__file__).parents[2]


@pytest.fixture
def reconcile(spark, spark_database_url):
    """Give what reconciles a component of `tests.unpaid`, by its name."""

    def run(name):
        run = Run(attrgetter(name)(unpaid), f"tests.unpaid:{name}", APP_DIR, spark_database_url)
        with exported_snapshot(spark_database_url) as snapshot:
            return in_session(run, snapshot, spark)

    return run


def effects(report):
    """Return by category how many commands are reserved, and how many of them handled."""
    return {one.category: (one.reserved, one.handled) for one in report.effects}


@pytest.mark.parametrize("name", ["reminding", pytest.param("processed", marks=pytest.mark.long)])
def test_a_command_that_only_schedules_has_taken_effect(
    spark_connection, spark_database_url, reconcile, name
):
    """It counts as handled before what it schedules is written, after that, and if cancelled."""
    component = getattr(unpaid, name)
    store = MessageStore(spark_connection)
    for number in ("1", "2", "3", "1"):
        store.write(Place(number), f"{SENT}-{number}")
    drain(spark_connection, component)

    report = reconcile(name)
    assert effects(report) == {"orderTransaction": (3, 3), "orderExpiry": (0, 0)}
    assert sum(one.duplicates for one in report.categories) == 1
    assert report.findings == []

    (cancelled, *_) = [id_ for (id_,) in rows(spark_connection, "id")]
    assert store.cancel(cancelled) is Cancellation.CANCELLED
    assert pass_time(spark_database_url, "30m") == 2
    drain(spark_connection, component)
    report = reconcile(name)
    assert effects(report) == {"orderTransaction": (3, 3), "orderExpiry": (2, 2)}
    assert (report.events.events, report.events.without_cause) == (2, 0)
    assert report.findings == []
