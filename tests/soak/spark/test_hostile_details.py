"""The details of a reconciliation where a database has everything set otherwise."""

from tests.apps.bank import drain
from tests.support.controls import COMMANDS, deposit, open_
from tests.support.hostile import set_otherwise


def test_details_are_measured_under_hostile_settings(connection, store, reconcile):
    """No setting of the database makes an error of a detail."""
    store.write([open_(), deposit("d1"), deposit("d1"), deposit("d1", "9")], COMMANDS)
    drain(connection)
    set_otherwise(connection)
    found = reconcile("--details")
    assert (found.error, found.found) == ("", ["conflict"])
