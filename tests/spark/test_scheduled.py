"""The reconciliation of commands whose handlers schedule messages."""

import pytest

from reservation import Cancellation
from reservation.testing import pass_time
from tests.apps import unpaid
from tests.apps.bank import drain
from tests.apps.unpaid import SENT, Place
from tests.spark.builders import ROOT


@pytest.fixture
def effects(reconcile):
    """Give by category how many commands are reserved, and how many of them handled."""

    def run(name):
        found = reconcile(app=f"tests.apps.unpaid:{name}", app_dir=ROOT)
        assert found.found == []
        return {
            one["category"]: (one["reserved"], one["handled"]) for one in found.report["effects"]
        }

    return run


@pytest.mark.parametrize("name", ["reminding", "processed"])
def test_a_command_that_only_schedules_has_taken_effect(
    connection, store, database_url, effects, name
):
    """It counts as handled before what it schedules is written, after that, and if cancelled."""
    component = getattr(unpaid, name)
    for number in ("1", "2", "3", "1"):
        store.write(Place(number), f"{SENT}-{number}")
    drain(connection, component)
    assert effects(name) == {"orderTransaction": (3, 3), "orderExpiry": (0, 0)}

    ((cancelled,),) = connection.execute("SELECT id FROM reservation.scheduled LIMIT 1").fetchall()
    assert store.cancel(cancelled) is Cancellation.CANCELLED
    assert pass_time(database_url, "30m") == 2
    drain(connection, component)
    assert effects(name) == {"orderTransaction": (3, 3), "orderExpiry": (2, 2)}
