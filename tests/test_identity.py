"""The random id of a store."""

import pytest

from reservation.errors import SchemaError
from reservation.postgres.connection import connect
from reservation.store.schema.identity import store_id
from reservation.store.schema.install import attach, detach, install


def test_each_installation_has_an_id_of_its_own(empty_database_url, make_database):
    """Each store has its own id, which installing again keeps."""
    found = []
    for address in (empty_database_url, make_database()):
        with connect(address, autocommit=True) as connection:
            install(connection)
            found.append(store_id(connection))
            install(connection)
            assert store_id(connection) == found[-1]
    assert len(set(found)) == 2


def test_a_store_of_the_former_version_gets_an_id(connection):
    """An upgrade gives a store an id."""
    before = store_id(connection)
    connection.execute("DELETE FROM reservation.versions WHERE version > 7")
    connection.execute("DROP TABLE reservation.store_identity CASCADE")
    connection.execute("ALTER TABLE reservation.positions DROP COLUMN message_id CASCADE")
    connection.execute(
        "ALTER TABLE reservation.groups DROP COLUMN carried_ids, DROP COLUMN first_position"
    )
    connection.execute("ALTER TABLE reservation.snapshots DROP COLUMN event_id")
    assert install(connection).from_version == 7
    assert store_id(connection) not in (None, before)


def test_a_store_that_message_db_installed_has_none_until_it_is_attached(connection):
    """A store of Message DB has an id from attaching to detaching."""
    before = store_id(connection)
    detach(connection)
    assert store_id(connection) is None
    attach(connection)
    assert store_id(connection) not in (None, before)


def test_a_missing_identity_is_named(connection):
    """A store whose id is missing, as after a restore without data, is refused."""
    connection.execute("DELETE FROM reservation.store_identity")
    with pytest.raises(SchemaError, match="store_identity is empty"):
        store_id(connection)
