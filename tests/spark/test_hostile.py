"""Spark's readers where a database has everything set otherwise."""

import psycopg
import pytest
from psycopg import conninfo, sql

from reservation.admin import install
from tests.apps.bank import drain
from tests.support.controls import COMMANDS, deposit, open_, withdraw
from tests.support.hostile import set_otherwise
from tests.support.started import run_cli


@pytest.fixture
def bank(connection, store):
    """Store commands of which one is a conflict."""
    commands = [open_(), deposit("d1"), deposit("d1"), withdraw("w1"), deposit("d1", "9")]
    store.write(commands, COMMANDS)
    drain(connection)


@pytest.mark.usefixtures("bank")
def test_a_reconciliation_finds_the_same(connection, reconcile, archive, tmp_path):
    """Under hostile settings of the database a run and an archive are as before."""
    set_otherwise(connection)
    found = reconcile()
    assert (found.error, found.found) == ("", ["conflict"])
    counted = {"commands": 4, "keys": 2, "duplicates": 1, "reserved": 2, "conflicts": 1}
    assert found.commands == counted
    assert archive().status == 0
    assert reconcile("--archive", tmp_path / "archive").commands == counted


@pytest.mark.usefixtures("bank")
def test_a_policy_that_hides_messages_is_an_error(connection, database_url):
    """A row security policy that hides messages is an error, and not a store without them."""
    role = f"reader_{connection.info.dbname}"
    connection.execute(
        sql.SQL(
            "CREATE ROLE {role} LOGIN IN ROLE message_store;"
            "ALTER TABLE message_store.messages ENABLE ROW LEVEL SECURITY;"
            "CREATE POLICY later ON message_store.messages TO {role} USING (position > 0)"
        ).format(role=sql.Identifier(role))
    )
    try:
        own = conninfo.make_conninfo(database_url, user=role)
        # In a process of its own, because the workers of the session here have another role.
        found = run_cli("reconcile", "bank:account", "--database-url", own)
        assert found.returncode == 2
        assert "row-level security" in found.stderr
        assert "Traceback" not in found.stderr
    finally:
        connection.execute(
            sql.SQL("DROP OWNED BY {role}; DROP ROLE {role}").format(role=sql.Identifier(role))
        )


@pytest.mark.usefixtures("bank")
def test_a_session_whose_workers_read_another_database_is_refused(reconcile, empty_database_url):
    """A program's own session is not used for a database that its workers do not have."""
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        install(connection)
    found = reconcile("--database-url", empty_database_url)
    assert found.status == 2
    assert "has a Spark session whose workers read another database" in found.error
