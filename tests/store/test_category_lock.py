"""A function acquire_lock that does not lock categories is refused: readers would miss messages."""

import pytest
from psycopg import connect, conninfo

from reservation.admin import attach, install
from reservation.errors import SchemaError
from tests.store.builders import grant, new_role  # noqa: F401  a fixture
from tests.store.schemas import findings
from tests.support.message_db import imitate

LOCKS = "SELECT pg_advisory_xact_lock(hash_64({})); SELECT hash_64({})"
HELD = "SELECT pg_try_advisory_xact_lock(hash_64(category($1))); SELECT hash_64(category($1))"
OTHERS = {
    "one for each stream": LOCKS.format("$1", "$1"),
    "one for each entity": LOCKS.format("coalesce(cardinal_id($1), $1)", "$1"),
    "one for all": "SELECT pg_advisory_xact_lock(1); SELECT 1::bigint",
    "none": "SELECT hash_64(category($1))",
    "of other numbers": "SELECT pg_advisory_xact_lock(1, hash_64(category($1))::bit(32)::int); "
    "SELECT 1::bigint",
    "a shared one": LOCKS.replace("xact_lock", "xact_lock_shared").format(
        "category($1)", "category($1)"
    ),
    "none where a stream has no id": "SELECT pg_advisory_xact_lock(hash_64(category($1))) "
    "WHERE NOT is_category($1); SELECT 1::bigint",
    "none where a category has a type": "SELECT pg_advisory_xact_lock(hash_64(category($1))) "
    "WHERE strpos($1, ':') = 0; SELECT 1::bigint",
    "an error": "SELECT 1 / 0; SELECT 1::bigint",
}
EQUAL = {
    "in SQL": LOCKS.format("category($1)", "category($1)"),
    "with another beside it": LOCKS.format("$1", "$1")
    + "; "
    + LOCKS.format("category($1)", "category($1)"),
    "that tries first": HELD,
}


def replace(connection, body):
    """Replace the function, as a user of Message DB may."""
    connection.execute("SET search_path = message_store, public")
    connection.execute(
        "CREATE OR REPLACE FUNCTION message_store.acquire_lock(stream_name varchar) RETURNS bigint "
        f"LANGUAGE sql VOLATILE AS $$ {body} $$"
    )
    connection.execute("RESET search_path")


@pytest.fixture
def message_db(empty_database_url):
    """Give a connection to a database that Message DB set up."""
    with connect(empty_database_url, autocommit=True) as connection:
        imitate(connection)
        yield connection


def locks(database_url):
    """Return what a check says about locks."""
    return [(severity, name) for severity, name, _ in findings(database_url, "locks")]


@pytest.mark.parametrize("body", OTHERS.values(), ids=OTHERS)
def test_a_function_that_takes_another_lock_is_refused(message_db, body):
    """Neither command adds anything beside it, and the error names the function and the way out."""
    replace(message_db, body)
    for command in (install, attach):
        with pytest.raises(
            SchemaError, match=r"message_store\.acquire_lock .* restore Message DB's"
        ):
            command(message_db)
    assert message_db.execute("SELECT to_regnamespace('reservation')").fetchone() == (None,)


@pytest.mark.parametrize("body", EQUAL.values(), ids=EQUAL)
def test_a_function_that_locks_the_category_is_as_good(message_db, empty_database_url, body):
    """It is judged by what it does, in whatever words, and nothing of the trial is left."""
    replace(message_db, body)
    attach(message_db)
    assert message_db.execute("SHOW search_path").fetchone() == ('"$user", public',)
    assert locks(empty_database_url) == []


def test_a_check_finds_a_function_that_was_replaced_later(connection, database_url, new_role):  # noqa: F811
    """A check finds it after the installation too, and says if it may not call it."""
    assert locks(database_url) == []
    replace(connection, OTHERS["one for each stream"])
    assert locks(database_url) == [("finding", "message_store.acquire_lock")]
    role = new_role()
    grant(connection, "auditor", role)
    connection.execute(
        "REVOKE EXECUTE ON FUNCTION message_store.acquire_lock FROM PUBLIC, message_store"
    )
    as_auditor = conninfo.make_conninfo(database_url, options=f"-crole={role}")
    assert locks(as_auditor) == [("note", "message_store.acquire_lock")]


def test_a_function_of_our_own_store_is_looked_at_too(connection):
    """A function that replaced ours is refused, not overwritten."""
    replace(connection, OTHERS["one for each stream"])
    with pytest.raises(SchemaError, match="acquire_lock"):
        install(connection)
    replace(connection, EQUAL["in SQL"])
    install(connection)
