"""A rebuild that is committed, because something else compares its tables."""

import signal
import subprocess
import sys

import psycopg
import pytest

import consumers
from reservation.errors import StoreError
from tests.apps.bank import address
from tests.apps.occupancy import FIRST, ROOT, book, nights, one_by_one
from tests.read_models.test_archive import verify_refused
from tests.support.commands import invoke_cli
from tests.support.read_models import no_differences, verify, verify_by

SCRATCH = "occupancy_1_verify"


@pytest.fixture
def built(connection, store):
    """Build a version."""
    book(store, 1, 2, 3)
    consumers.drain(one_by_one(), address(connection))
    return connection


def there(connection, schema=SCRATCH):
    ((found,),) = connection.execute("SELECT to_regnamespace(%s)", [schema]).fetchall()
    return found is not None


def test_it_is_there_only_while_tables_are_compared(built, store):
    """Live rows are those of the snapshot, whatever consumers do meanwhile."""

    def compare(table, snapshot, most):
        assert there(built)
        book(store, 9, booking="more")
        consumers.drain(one_by_one(), address(built))
        with psycopg.connect(address(built)) as other:
            other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            other.execute(psycopg.sql.SQL("SET TRANSACTION SNAPSHOT {}").format(snapshot))
            assert nights(other, table.live) == nights(other, table.rebuilt) | {1: 1, 2: 1, 3: 1}
            assert 9 not in nights(other, table.live)
        assert nights(built, table.rebuilt) == {1: 1, 2: 1, 3: 1}
        return no_differences(table, snapshot, most)

    assert verify_by(compare, address(built), one_by_one()).is_proved
    assert not there(built)
    assert 9 in nights(built)


def test_it_is_removed_after_an_error(built):
    """As after a comparison."""

    def compare(table, snapshot, most):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        verify_by(compare, address(built), one_by_one())
    assert not there(built)


KILLED = """
import os, signal
from tests.apps.occupancy import one_by_one
from tests.support.read_models import verify_by
verify_by(lambda *_: os.kill(os.getpid(), signal.SIGKILL), {address!r}, one_by_one())
"""


def test_what_a_killed_process_leaves_is_removed_by_the_next(built):
    """One that commits nothing is not in its way."""
    code = KILLED.format(address=address(built))
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    assert there(built)
    assert verify(built, one_by_one()).is_proved
    assert there(built)
    assert verify_by(no_differences, address(built), one_by_one()).is_proved
    assert not there(built)


def test_one_process_at_a_time_verifies_a_version(built):
    """The other one is told."""

    def compare(table, snapshot, most):
        assert "Another process verifies version 1 of the read model" in verify_refused(built)
        return no_differences(table, snapshot, most)

    assert verify_by(compare, address(built), one_by_one()).is_proved


def test_a_schema_of_somebody_else_stays(built):
    """It may have the name."""
    built.execute(f"CREATE SCHEMA {SCRATCH} CREATE TABLE mine (n int)")
    for one in (verify_by, lambda *rest: verify(built, rest[-1])):
        with pytest.raises(StoreError, match="is in use for something else than the verification"):
            one(no_differences, address(built), one_by_one())
    assert there(built, f"{SCRATCH}")
    built.execute(f"SELECT n FROM {SCRATCH}.mine")


def test_how_spark_runs_is_said_only_with_spark(built):
    """Else the option would have no effect."""
    at = ("--database-url", address(built), "--master", "local[1]")
    done = invoke_cli("models", "verify", FIRST, *at, cwd=ROOT)
    assert done.returncode == 2
    assert "--master says how Spark runs; give --spark too" in done.stderr
