"""A store on a connection of Django, in the transaction of an atomic block."""

import os
import subprocess
import sys
import threading
from contextlib import contextmanager

import django
import pytest
from django.db import connection as django_connection
from django.db import connections, models, transaction
from django.db.transaction import TransactionManagementError
from django.db.utils import IntegrityError, InternalError, OperationalError
from django.http import HttpResponse
from django.test import Client
from django.urls import path
from psycopg.pq import Format

from bank import account
from reservation import AsyncMessageStore, MessageStore
from reservation.errors import ExpectedVersionError, StoreError
from tests.store.test_sqlalchemy import AUTOCOMMIT, refused
from tests.support import django_project
from tests.support.controls import COMMANDS, deposit, withdraw
from tests.support.pages import ROOT


class Account(models.Model):
    id = models.CharField(primary_key=True, max_length=9)

    class Meta:
        app_label = "tests"
        db_table = "accounts"


class Receipt(models.Model):
    """A receipt, whose account PostgreSQL looks for at the commit."""

    id = models.CharField(primary_key=True, max_length=9)
    account = models.ForeignKey(Account, models.CASCADE)

    class Meta:
        app_label = "tests"
        db_table = "receipts"


STORE = MessageStore.django()


@pytest.fixture(autouse=True)
def _tables(database_url):
    """Let Django use the test's database, with the tables of the team."""
    django_project.use(database_url)
    with django_connection.schema_editor() as editor:
        editor.create_model(Account)
        editor.create_model(Receipt)
    Account.objects.create(id="123")
    yield
    connections.close_all()
    del connections["default"]


@contextmanager
def refused_block(error, match=None):
    """Run an atomic block that an error ends."""
    with pytest.raises(error, match=match), transaction.atomic():
        yield


def found(connection):
    """Return the keys of the commands and the ids of the team's rows, as others see them."""
    commands = "SELECT data->>'depositId' FROM message_store.messages ORDER BY global_position"
    receipts = "SELECT id FROM receipts ORDER BY id"
    return tuple([row[0] for row in connection.execute(sql)] for sql in (commands, receipts))


def test_messages_and_rows_are_committed_together(connection):
    """What an atomic block writes is there after it, and nobody sees it before."""
    with transaction.atomic():
        Receipt.objects.create(id="r1", account_id="123")
        assert STORE.send(deposit("d1"), account) == 0
        assert STORE.write([deposit("d2"), deposit("d3")], COMMANDS) == 2
        assert found(connection) == ([], [])
    assert found(connection) == (["d1", "d2", "d3"], ["r1"])


def test_an_exception_takes_messages_and_rows_away(connection):
    """After an atomic block that raised nothing of it is there."""
    with refused_block(ZeroDivisionError):
        Receipt.objects.create(id="r1", account_id="123")
        STORE.write(deposit("d1"), COMMANDS)
        STORE.write(deposit("d2"), COMMANDS, after="1h")
        _ = 1 / 0
    assert found(connection) == ([], [])
    assert connection.execute("SELECT count(*) FROM reservation.scheduled").fetchone() == (0,)


def test_a_nested_block_that_raised_takes_its_message_away(connection):
    """An inner atomic block is a savepoint; an error of the store in it leaves the outer one."""
    with transaction.atomic():
        STORE.write(deposit("d1"), COMMANDS)
        with refused_block(ExpectedVersionError):
            STORE.write(deposit("d2"), COMMANDS)
            STORE.write(deposit("d3"), COMMANDS, expected_version=7)
        with transaction.atomic():
            STORE.write(deposit("d4"), COMMANDS)
        sid = transaction.savepoint()
        STORE.write(deposit("d5"), COMMANDS)
        transaction.savepoint_rollback(sid)
    assert found(connection) == (["d1", "d4"], [])


def test_an_error_of_the_store_fails_the_block(connection):
    """After a refused message PostgreSQL takes nothing more, unless it was in a nested block."""
    with refused_block(InternalError, "current transaction is aborted"):
        STORE.write(deposit("d1"), COMMANDS)
        with pytest.raises(ExpectedVersionError):
            STORE.write(deposit("d2"), COMMANDS, expected_version=7)
        Receipt.objects.create(id="r1", account_id="123")
    assert found(connection) == ([], [])


def test_a_block_that_is_to_be_rolled_back_takes_no_message(connection):
    """After an error in a nested block without a savepoint Django's own error is raised."""
    with transaction.atomic():
        with pytest.raises(ZeroDivisionError), transaction.atomic(savepoint=False):
            _ = 1 / 0
        with pytest.raises(TransactionManagementError):
            STORE.write(deposit("d1"), COMMANDS)
    assert found(connection) == ([], [])


def test_an_error_of_the_commit_is_the_callers(connection):
    """A foreign key that fails at the commit raises Django's error; nothing is left."""
    with refused_block(IntegrityError, "foreign key"):
        Receipt.objects.create(id="r1", account_id="nobody")
        STORE.write(deposit("d1"), COMMANDS)
    assert found(connection) == ([], [])


def test_outside_a_block_a_message_is_refused_and_reads_are_not(connection):
    """In Django's autocommit a message is refused; outcomes can be asked for and waited for."""
    assert refused(lambda: STORE.write(deposit(), COMMANDS)) == AUTOCOMMIT
    assert refused(lambda: STORE.send(deposit(), account, after="1h")) == AUTOCOMMIT
    with transaction.atomic():
        STORE.send(deposit("d1"), account)
        assert "could wait for ever" in refused(lambda: STORE.wait_for(deposit("d1"), account))
    assert STORE.outcome(deposit("d1"), account).state == "pending"
    assert STORE.wait_for(deposit("d1"), account, timeout=0).state == "pending"
    assert found(connection) == (["d1"], [])


@pytest.mark.parametrize("fails", [False, True])
def test_with_atomic_requests_the_request_is_the_transaction(connection, monkeypatch, fails):
    """A view that raises leaves no message, one that answers does."""

    def view(_):
        Receipt.objects.create(id="r1", account_id="123")
        STORE.write(deposit("d1"), COMMANDS)
        if fails:
            raise ValueError
        return HttpResponse("done")

    monkeypatch.setattr(
        django_project.URLS, "urlpatterns", [path(f"view{fails}", view)], raising=False
    )
    django.urls.clear_url_caches()
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    answer = Client(raise_request_exception=False).get(f"/view{fails}")
    assert answer.status_code == (500 if fails else 200)
    assert found(connection) == (([], []) if fails else (["d1"], ["r1"]))


def test_each_thread_has_its_own_connection(connection):
    """A store that was made once writes in the block of the thread that calls."""

    def other():
        with transaction.atomic():
            STORE.write(deposit("d2"), "other:command-1")
        django_connection.close()

    with refused_block(ZeroDivisionError):
        STORE.write(deposit("d1"), COMMANDS)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        _ = 1 / 0
    assert found(connection) == (["d2"], [])


def test_a_connection_that_was_closed_is_opened_again(connection):
    """After Django closed its connection the next block has another; a block cannot."""
    django_connection.close()
    with transaction.atomic():
        STORE.write(deposit("d1"), COMMANDS)
    with refused_block(OperationalError):
        django_connection.connection.close()
        STORE.write(deposit("d2"), COMMANDS)
    django_connection.close()
    with transaction.atomic():
        STORE.write(deposit("d3"), COMMANDS)
    assert found(connection) == (["d1", "d3"], [])


FORKING = """
import os, sys
import django
from django.conf import settings
from django.db import transaction
from psycopg.conninfo import conninfo_to_dict
from reservation import MessageStore
from tests.support.controls import COMMANDS, deposit
known = conninfo_to_dict(sys.argv[1])
database = {"NAME": known.pop("dbname"), "OPTIONS": known}
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", **database}})
django.setup()
store = MessageStore.django()
child = os.fork()
assert not child or os.waitpid(child, 0)[1] == 0
with transaction.atomic():
    store.write(deposit("parent" if child else "child"), COMMANDS)
"""


def test_a_store_that_was_made_before_a_fork_is_used_in_it(database_url, connection):
    """A program that makes its store when it is imported, and forks, may use it in both."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "examples")])
    subprocess.run(
        [sys.executable, "-c", FORKING, database_url],
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert found(connection) == (["child", "parent"], [])


def test_what_django_set_on_the_connection_stays():
    """Django's cursors, adapters and autocommit are the same after a call, also one that raised."""

    def state():
        raw = django_connection.connection
        loaders = [
            raw.adapters.get_loader(raw.adapters.types[name].oid, Format.TEXT)
            for name in ("timestamptz", "jsonb", "text")
        ]
        return (
            *(raw.autocommit, raw.prepare_threshold, raw.row_factory, raw.cursor_factory),
            *(raw.isolation_level, loaders),
        )

    with transaction.atomic():
        before = state()
        STORE.write([deposit("d1"), withdraw("w1")], COMMANDS)
        assert STORE.last_message(COMMANDS).decode(type(withdraw())) == withdraw("w1")
        with refused_block(ExpectedVersionError):
            STORE.write(deposit("d2"), COMMANDS, expected_version=7)
        assert state() == before
        assert Account.objects.count() == 1


def test_another_database_is_refused():
    """A connection of another database cannot commit the message."""
    assert refused(lambda: MessageStore.django("lite")) == (
        "The message store is in PostgreSQL, and cannot be part of a transaction of sqlite; send "
        "after the commit with open(database_url), and again if it may have failed: a command "
        "takes effect once"
    )


def test_the_connection_itself_is_taken():
    """Django's `connection` and one of its `connections` are taken as they are."""
    for source in (django_connection, connections["default"]):
        with transaction.atomic():
            MessageStore(source).write(deposit("d1"), COMMANDS)
        with pytest.raises(StoreError, match="MessageStore takes those"):
            AsyncMessageStore(source)
    assert STORE.stream_version(COMMANDS) == 1
