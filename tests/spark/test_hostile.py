"""Spark's readers where a database has everything set otherwise."""

import json

import pytest
from psycopg import conninfo, sql

from tests.bank import drain
from tests.controls import COMMANDS, deposit, open_, withdraw
from tests.hostile import set_otherwise
from tests.processes import run_cli

pytestmark = pytest.mark.spark


def reconcile(address, *arguments):
    return run_cli(
        "reconcile", "bank:account", "--json", *arguments, env={"RESERVATION_DATABASE_URL": address}
    )


@pytest.mark.long
@pytest.mark.parametrize("whole", [False, True])
def test_a_reconciliation_finds_the_same(connection, store, database_url, whole, tmp_path):
    """Under hostile settings a reconciliation finds the same, with and without fingerprints."""
    store.write(
        [open_(), deposit("d1"), deposit("d1"), withdraw("w1"), deposit("d1", "9")], COMMANDS
    )
    drain(connection)
    set_otherwise(connection)
    more = ["--output", str(tmp_path / "found")] if whole else []
    done = reconcile(database_url, *more)
    assert done.returncode == 1, done.stderr
    pair, *_ = json.loads(done.stdout)["categories"]
    assert (pair["commands"], pair["reserved"], pair["duplicates"]) == (4, 2, 1)
    assert (pair["conflicts"], pair["missing"], pair["orphans"]) == (1, 0, 0)


def test_a_policy_that_hides_messages_is_an_error(connection, store, database_url):
    """A row security policy that hides messages is an error."""
    role = f"reader_{connection.info.dbname}"
    store.write([open_(), deposit("d1")], COMMANDS)
    connection.execute(
        sql.SQL(
            "CREATE ROLE {role} LOGIN IN ROLE message_store;"
            "ALTER TABLE message_store.messages ENABLE ROW LEVEL SECURITY;"
            "CREATE POLICY later ON message_store.messages TO {role} USING (position > 0)"
        ).format(role=sql.Identifier(role))
    )
    try:
        done = reconcile(conninfo.make_conninfo(database_url, user=role))
        assert done.returncode == 2
        assert "row-level security" in done.stderr
        assert "Traceback" not in done.stderr
    finally:
        connection.execute(
            sql.SQL("DROP OWNED BY {role}; DROP ROLE {role}").format(role=sql.Identifier(role))
        )
