"""Spark's readers where a database has everything set otherwise."""

import pytest
from psycopg import conninfo, sql

from tests.apps.bank import drain
from tests.support.controls import COMMANDS, deposit, open_, withdraw
from tests.support.hostile import set_otherwise


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
def test_a_policy_that_hides_messages_is_an_error(connection, database_url, reconcile):
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
        found = reconcile("--database-url", own)
        assert found.status == 2
        assert "row-level security" in found.error
        assert "Traceback" not in found.error
    finally:
        connection.execute(
            sql.SQL("DROP OWNED BY {role}; DROP ROLE {role}").format(role=sql.Identifier(role))
        )
