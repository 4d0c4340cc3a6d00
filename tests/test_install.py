"""Putting the store into a database."""

import threading

import pytest

from reservation import MessageStore, install
from reservation.errors import DatabaseUnavailableError, SchemaError, StoreError
from reservation.store.connection import connect
from reservation.store.install import SCHEMA_VERSION, check_installed
from tests.controls import COMMANDS, deposit


def test_an_empty_database_gets_both_schemas(empty_database_url):
    """The first installation makes everything and says so."""
    with connect(empty_database_url, autocommit=True) as connection:
        installed = install(connection)
        check_installed(connection)
        assert MessageStore(connection).write(deposit(), COMMANDS) == 0
    assert installed.message_store
    assert installed.message_store_version == "1.3.0"
    assert (installed.from_version, installed.to_version) == (None, SCHEMA_VERSION)


def test_installing_again_changes_nothing(connection, store):
    """Deployments run it each time."""
    store.write(deposit(), COMMANDS)
    installed = install(connection)
    assert not installed.message_store
    assert installed.from_version == installed.to_version == SCHEMA_VERSION
    assert store.stream_version(COMMANDS) == 0


def test_two_installations_at_once_wait_for_each_other(empty_database_url):
    """Several instances of a service may start at one time."""
    results = []

    def run():
        with connect(empty_database_url, autocommit=True) as connection:
            results.append(install(connection))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(result.message_store for result in results) == [False, False, False, True]


def test_an_installation_that_fails_leaves_nothing(empty_database_url):
    """All of it happens in one transaction."""
    with connect(empty_database_url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA reservation")  # somebody else's
        with pytest.raises(Exception, match="already exists"):
            install(connection)
        assert connection.execute("SELECT to_regclass('message_store.messages')").fetchone() == (
            None,
        )


def test_a_role_that_may_not_create_is_told_so(empty_database_url, connection):
    """The way out is a role that may."""
    with connect(empty_database_url, autocommit=True) as poor:
        poor.execute("SET ROLE message_store")
        with pytest.raises(StoreError, match="connect as a role that may"):
            install(poor)


def test_a_missing_schema_is_named_with_the_command_that_mends_it(empty_database_url, connection):
    """Both schemas are looked for, and a version is compared."""
    with connect(empty_database_url, autocommit=True) as empty:
        with pytest.raises(SchemaError, match=r"message_store is missing.*store install"):
            check_installed(empty)
        with pytest.raises(SchemaError, match="reservation store install"):
            MessageStore(empty).write(deposit(), COMMANDS)
    connection.execute("UPDATE reservation.versions SET version = 99")
    with pytest.raises(SchemaError, match=r"newer than the .* upgrade the package"):
        check_installed(connection)
    with pytest.raises(SchemaError, match="newer"):
        install(connection)
    connection.execute("UPDATE reservation.versions SET version = 0")
    with pytest.raises(SchemaError, match=r"version 0, this package needs .*store install"):
        check_installed(connection)
    connection.execute("DROP SCHEMA reservation CASCADE")
    with pytest.raises(SchemaError, match=r"lacks the schema reservation.*store install"):
        check_installed(connection)


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://someone:hunter2@127.0.0.1:1/nothing",
        "host=/nowhere password=hunter2",
        "postgresql//someone:hunter2@host",
        "nonsense=hunter2",
    ],
)
def test_an_address_that_leads_nowhere_is_named_without_its_password(address):
    """The error is one line and keeps the secret."""
    with pytest.raises(DatabaseUnavailableError) as caught:
        connect(address)
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(DatabaseUnavailableError):
        MessageStore.open(address)
