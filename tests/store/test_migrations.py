"""From one version of the schema to the next, with a second version that the tests make up."""

import threading

import pytest
from psycopg import connect, sql

from reservation import MessageStore
from reservation.admin import attach, detach, install
from reservation.errors import SchemaError, StoreError
from reservation.store.schema.scripts import Migrations
from tests.apps.bank import drain
from tests.store.builders import grant, new_role  # noqa: F401  a fixture
from tests.store.schemas import FINGERPRINT, catalog, findings, message_db  # noqa: F401  a fixture
from tests.support.controls import COMMANDS, deposit, open_

SECOND = """
ALTER TABLE reservation.moves ADD COLUMN note text NOT NULL DEFAULT 'second';
DROP FUNCTION IF EXISTS reservation.may_insert;
"""


def as_of_this_version(connection):
    """Let this package, which knows the first version alone, look at the store."""
    connection.execute("DELETE FROM reservation.versions WHERE version > 1")


@pytest.fixture
def second(tmp_path):
    """Give the migrations of a package whose schema has version 2."""
    (tmp_path / "002_notes.sql").write_text(SECOND)
    (tmp_path / "README.md").write_text("no migration")
    return Migrations(tmp_path)


def test_an_upgrade_changes_the_tables_and_makes_the_functions_again(connection, store, second):
    """The functions of both schemas are those of the new version, and the messages stay."""
    store.write(deposit(), COMMANDS)
    connection.execute(
        "INSERT INTO reservation.moves (consumer, category, position) "
        "VALUES ('account', 'account:command', 7)"
    )
    for replaced in ("message_store.is_category(stream_name varchar)", "reservation.may_read()"):
        connection.execute(
            f"CREATE OR REPLACE FUNCTION {replaced} RETURNS boolean LANGUAGE sql IMMUTABLE "
            "RETURN false"
        )
    installed = install(connection, migrations=second)
    assert (installed.from_version, installed.to_version, installed.restored) == (1, 2, 0)
    answers = connection.execute(
        "SELECT message_store.is_category('a'), reservation.may_read(), reservation.may_insert()"
    )
    assert answers.fetchone() == (True, True, True)
    moved = connection.execute(
        "SELECT position, note FROM reservation.moves WHERE consumer = 'account'"
    ).fetchall()
    assert moved == [(7, "second")]
    assert store.write(deposit("d2"), COMMANDS) == 1


def test_a_new_store_has_what_an_upgraded_one_has(connection, empty_database_url, second):
    """Whichever way a store came to its version, its schemas are the same."""
    install(connection, migrations=second)
    with connect(empty_database_url, autocommit=True) as empty:
        installed = install(empty, migrations=second)
        assert (installed.from_version, installed.to_version) == (None, 2)
        made, versions = catalog(empty)
        assert set(made) ^ set(catalog(connection)[0]) == set()
        assert [version for version, _ in versions] == [1, 2]


def test_an_upgrade_runs_once(connection, second):
    """To install the version that is there changes nothing."""
    install(connection, migrations=second)
    before = catalog(connection)
    again = install(connection, migrations=second)
    assert (again.from_version, again.to_version, again.restored) == (2, 2, 0)
    assert catalog(connection) == before


def test_an_upgrade_that_fails_leaves_the_former_version_whole(connection, store, second):
    """The scripts of all versions are one transaction; the store works as before."""
    before = catalog(connection)
    (second.folder / "003_failing.sql").write_text(
        "DROP TABLE reservation.snapshots; SELECT 1 / 0;"
    )
    with pytest.raises(StoreError, match="DivisionByZero"):
        install(connection, migrations=second)
    assert catalog(connection) == before
    store.write(open_(), COMMANDS)
    assert drain(connection).counts["handled"] == 1


def test_two_upgrades_at_once_wait_for_each_other(connection, database_url, second):
    """One upgrades, the others find the new version."""
    results = []

    def run():
        with connect(database_url, autocommit=True) as other:
            results.append(install(other, migrations=second).from_version)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [1, 2, 2, 2]


def test_a_newer_store_is_refused_and_left_as_it_is(connection, second):
    """By installing, attaching, detaching and every program."""
    install(connection, migrations=second)
    before = catalog(connection)
    for work in (install, attach, detach, drain):
        with pytest.raises(SchemaError, match=r"version 2, newer than the 1 .* upgrade the pack"):
            work(connection)
    assert catalog(connection) == before


def test_a_schema_beside_message_db_is_upgraded(message_db, second):  # noqa: F811
    """Attaching again upgrades, and changes nothing of Message DB."""
    before = message_db.execute(FINGERPRINT).fetchall()
    attach(message_db)
    upgraded = attach(message_db, migrations=second)
    assert (upgraded.from_version, upgraded.to_version) == (1, 2)
    assert MessageStore(message_db).write(deposit(), COMMANDS) == 0
    message_db.execute("DELETE FROM reservation.versions WHERE version = 2")
    detach(message_db)
    after = message_db.execute(FINGERPRINT).fetchall()
    assert [row for row in after if row[1] != "reservation"] == before


KINDS = ("sender", "consumer", "operator", "auditor")


def test_roles_keep_their_rights_and_get_what_is_new(connection, database_url, new_role, second):  # noqa: F811
    """A function that is dropped and made again, and a table that is new, are those of the kind."""
    roles = {kind: new_role(f"_{kind}") for kind in KINDS}
    for kind, role in roles.items():
        grant(connection, kind, role, ["account:command"] if kind == "sender" else [])
    (second.folder / "003_table.sql").write_text("CREATE TABLE reservation.later (n int)")
    install(connection, migrations=second)
    as_of_this_version(connection)
    assert findings(database_url, "rights") == []
    reads = connection.execute(
        "SELECT has_table_privilege(%s, 'reservation.later', 'SELECT')", [roles["auditor"]]
    )
    assert reads.fetchone() == (True,)


def test_an_upgrade_gives_nothing_to_a_role_of_no_kind(connection, database_url, new_role, second):  # noqa: F811
    """What its owner took from it, or gave it by hand, stays as it is."""
    other, consumer = new_role("_other"), new_role("_consumer")
    grant(connection, "consumer", consumer)
    for statement in (
        "GRANT USAGE ON SCHEMA reservation TO {other}",
        "GRANT INSERT, UPDATE ON reservation.dead_letters TO {other}",
        "REVOKE UPDATE ON reservation.snapshots FROM {consumer}",
    ):
        connection.execute(
            sql.SQL(statement).format(
                other=sql.Identifier(other), consumer=sql.Identifier(consumer)
            )
        )
    install(connection, migrations=second)
    as_of_this_version(connection)
    # The upgrade made reservation.may_insert anew, and the role could call it before.
    lacks = "the consumer lacks UPDATE on reservation.snapshots"
    assert findings(database_url, "rights") == [("finding", consumer, lacks)]
    granted = connection.execute(
        "SELECT has_function_privilege(%s, 'reservation.may_insert()', 'EXECUTE')", [other]
    )
    assert granted.fetchone() == (False,)
