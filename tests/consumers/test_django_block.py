"""`context.django()`: Django's ORM in a handler, in the transaction of the batch."""

import asyncio
import threading
from datetime import UTC, datetime
from functools import partial

import psycopg
import pytest
from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import close_old_connections, connections, models, transaction
from django.db import connection as django_connection
from django.db.utils import DatabaseError, IntegrityError, OperationalError
from psycopg.rows import dict_row

from consumers.testing import run_in_memory
from reservation import Component, MessageStore, Reject, Retry
from reservation.errors import DatabaseUnavailableError, HandlerError
from reservation.testing import given
from tests.apps.bank import drain
from tests.consumers.builders import stored_letters
from tests.consumers.test_sqlalchemy_session import (
    Do,
    Done,
    Redo,
    done,
    job_with,
    jobs,
    raising,
    send,
)
from tests.consumers.test_sqlalchemy_session import fails as fails_with
from tests.support import django_project

NOWAIT = "SELECT FROM jobs WHERE id = 'held' FOR UPDATE NOWAIT"


class Job(models.Model):
    id = models.CharField(primary_key=True, max_length=20)
    at = models.DateTimeField(null=True)
    details = models.JSONField(null=True)

    class Meta:
        app_label = "tests"
        db_table = "jobs"


class Step(models.Model):
    """A step, whose job PostgreSQL looks for at the commit."""

    id = models.CharField(primary_key=True, max_length=20)
    job = models.ForeignKey(Job, models.CASCADE)

    class Meta:
        app_label = "tests"
        db_table = "steps"


@pytest.fixture(autouse=True)
def _tables(database_url):
    """Let Django use the test's database, with the tables of the team."""
    django_project.use(database_url)
    with django_connection.schema_editor() as editor:
        editor.create_model(Job)
        editor.create_model(Step)
    yield
    connections.close_all()
    del connections["default"]


def add_job(command, context):
    """Write the row of a command."""
    with context.django():
        Job.objects.create(id=command.job_id)


fails = partial(fails_with, write=add_job)


# The transaction


@pytest.mark.parametrize("batch_size", [1, 1000])
def test_rows_and_events_are_committed_together(connection, store, batch_size):
    """Of several messages in a batch, those that fail leave neither rows nor events."""

    def act(command, context):
        with context.django():
            Job.objects.create(id=command.job_id)
            assert command.job_id not in jobs(connection)
        if command.job_id in ("b", "d"):
            raise ValueError
        return "kept"

    send(store, *"abcde")
    drained = drain(connection, job_with(act), batch_size=batch_size)
    assert drained.counts == {"handled": 3, "dead": 2}
    assert jobs(connection) == [*"ace"]
    assert done(connection) == [(name, "kept") for name in "ace"]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_values_are_read_as_django_reads_them(connection, store, monkeypatch, zone):
    """JSON, times and cursors are Django's, whatever the connection has; that is as before."""
    database = connection.info.dbname
    connection.execute(f"ALTER DATABASE {database} SET TimeZone = 'Europe/Berlin'")
    monkeypatch.setattr(settings, "USE_TZ", True)
    monkeypatch.setitem(connections.settings["default"], "TIME_ZONE", zone)
    del connections["default"]
    at, states = datetime(2026, 7, 8, 9, tzinfo=UTC), []

    def state(one):
        names = ("autocommit", "row_factory", "cursor_factory", "prepare_threshold")
        json = one.execute("SELECT '{}'::jsonb AS n").fetchone()
        return (
            *(getattr(one, name) for name in names),
            one.info.parameter_status("TimeZone"),
            str(json),
        )

    def act(command, context):
        context.connection.row_factory = dict_row
        states.append(state(context.connection))
        with context.django():
            Job.objects.create(id="1", at=at, details={"n": [1]})
            job = Job.objects.get(at=at)
            assert (job.at, job.details) == (at, {"n": [1]})
            assert job.at.utcoffset() == at.astimezone(connections["default"].timezone).utcoffset()
            assert [one.id for one in Job.objects.iterator(chunk_size=1)] == ["1"]
            totals = Job.objects.values("details__n").annotate(n=models.Count("id"))
            assert list(totals) == [{"details__n": [1], "n": 1}]
            states.append(state(context.connection)[:-2])
        states.append(state(context.connection))

    send(store, "a")
    try:
        assert drain(connection, job_with(act)).counts == {"handled": 1}
    finally:
        connection.execute(f"ALTER DATABASE {database} RESET TimeZone")
    assert states[0] == states[2]
    assert states[0][-2:] == ("Europe/Berlin", "{'n': {}}")
    assert states[1] == states[0][:-2]


def test_atomic_blocks_are_savepoints(connection, store):
    """Nested blocks of both kinds, and statements of `context.connection`, see each other."""

    def act(command, context):
        with context.django():
            Job.objects.create(id="outer")
            context.connection.execute("INSERT INTO jobs VALUES ('plain')")
            with raising(IntegrityError), transaction.atomic():
                Job.objects.create(id="plain")
            with raising(KeyError), context.django():
                Job.objects.create(id="lost")
                raise KeyError
            with transaction.atomic():
                with context.session() as session:
                    assert session.connection().exec_driver_sql(
                        "SELECT id FROM jobs ORDER BY id"
                    ).scalars().all() == ["outer", "plain"]
                Job.objects.create(id="nested")
            with raising(RuntimeError), transaction.atomic(durable=True):
                pass

    send(store, "a")
    assert drain(connection, job_with(act)).counts == {"handled": 1}
    assert jobs(connection) == ["nested", "outer", "plain"]


def test_what_is_marked_for_a_rollback_is_taken_back(connection, store):
    """`set_rollback` and an exception take back the block, and nothing before it."""

    def act(command, context):
        with context.django():
            Job.objects.create(id="kept")
        with context.django():
            Job.objects.create(id="marked")
            transaction.set_rollback(True)
        with raising(IntegrityError), context.django():
            Job.objects.create(id="lost")
            Job.objects.create(id="kept")
        return "went on"

    send(store, "a")
    assert drain(connection, job_with(act)).counts == {"handled": 1}
    assert (jobs(connection), done(connection)) == (["kept"], [("a", "went on")])


def test_a_message_is_written_through_django(connection, store):
    """`MessageStore.django()` writes in the transaction of the batch while the block lasts."""
    own = MessageStore.django()

    def act(command, context):
        with context.django():
            Job.objects.create(id=command.job_id)
            own.write(Done("x"), "other-1")
        if command.job_id == "b":
            raise ValueError

    send(store, *"ab")
    drain(connection, job_with(act))
    assert jobs(connection) == ["a"]
    assert [message.type for message in store.read_stream("other-1")] == ["Done"]


def test_a_rejection_and_a_policy_see_to_rows_as_for_the_connection(connection, store):
    """`Reject` in the block takes its rows back; a policy's attempt leaves none."""
    calls = []

    def act(command, context):
        with context.django():
            Job.objects.create(id=f"{command.job_id}-{len(calls)}")
            if command.job_id == "rejected":
                raise Reject("no")
        calls.append(command.job_id)
        if len(calls) < 3:
            raise ValueError

    send(store, "rejected", "retried")
    component = job_with(act, retry=Retry(attempts=5, first="1ms"))
    assert drain(connection, component).counts == {"rejected": 1, "handled": 1}
    assert jobs(connection) == ["retried-2"]


def test_the_threads_own_connection_stays_as_it_is(connection, store):
    """It is open before and after, in its own transaction, and closing it in the block is not."""
    seen = []

    def act(command, context):
        with context.django():
            Job.objects.create(id=command.job_id)
            close_old_connections()
            connections.close_all()
            django_connection.close()
            seen.append((Job.objects.count(), django_connection.in_atomic_block))
        if command.job_id == "a":
            raise KeyError
        with raising(KeyError), context.django():
            raise KeyError

    own = connections["default"]
    own.ensure_connection()
    raw = own.connection
    send(store, "a", "b")
    drain(connection, job_with(act))
    assert connections["default"] is own
    assert (own.connection, raw.closed, own.in_atomic_block) == (raw, False, False)
    assert seen[-1] == (1, True)
    assert jobs(connection) == ["b"]
    assert Job.objects.count() == 1


def test_other_threads_have_their_own_connections(connection, store):
    """Only the handler's thread works in the transaction of the batch."""
    counts = []

    def count():
        counts.append(Job.objects.count())
        django_connection.close()

    def act(command, context):
        with context.django():
            Job.objects.create(id="a")
            thread = threading.Thread(target=count)
            thread.start()
            thread.join()

    send(store, "a")
    drain(connection, job_with(act))
    assert (counts, jobs(connection)) == ([0], ["a"])


def test_beside_async_handlers_django_works_too(connection, store):
    """A handler that is not async may be called in a thread with an event loop."""
    job = job_with(lambda command, context: with_django(context))

    def with_django(context):
        assert asyncio.get_running_loop()
        with context.django(), transaction.atomic():
            Job.objects.create(id="a")
            assert [one.id for one in Job.objects.iterator()] == ["a"]

    @job.handle(Redo, once=None)
    async def redo(command, entity, context):
        await asyncio.sleep(0)

    send(store, "a")
    store.write(Redo("b"), "job:command-b")
    assert drain(connection, job).counts == {"handled": 2}
    assert jobs(connection) == ["a"]


# What is refused


def commits(command, context):
    with context.django():
        Job.objects.create(id="x")
        transaction.commit()


def calls_on_commit(command, context):
    with context.django():
        Job.objects.create(id="x")
        transaction.on_commit(print)


def of_another_database(command, context):
    with context.django("lite"):
        pass


def of_another_name(command, context):
    connections["default"].settings_dict["NAME"] = "elsewhere"
    try:
        with context.django():
            pass
    finally:
        connections["default"].settings_dict["NAME"] = context.connection.info.dbname


def swallows(command, context):
    with context.django(), raising(IntegrityError):
        Job.objects.create(id="well")


def swallows_before_the_server(command, context):
    with context.django():
        Job.objects.create(id="x")
        with raising(ValidationError):
            Job.objects.create(id="y", at="not a time")


def swallows_in_a_part_without_a_savepoint(command, context):
    with context.django():
        with transaction.atomic():
            transaction.set_rollback(True)  # of the part
        with raising(KeyError), transaction.atomic(savepoint=False):
            Job.objects.create(id="x")
            raise KeyError


WENT_ON = (
    "went on after a statement that failed, so nothing of the block can be committed; execute what "
    "may fail in `with transaction.atomic():`"
)
REFUSED = {
    commits: "committed Django's 'default', whose rows are committed with the message; leave "
    "commit() out, and end a part with `with transaction.atomic():`",
    calls_on_commit: "called transaction.on_commit, which nothing would call; write a message with "
    "context.write, and do it in the handler of that",
    of_another_database: "cannot use Django's 'lite', a database of sqlite, on the batch's "
    "connection; use an alias of the message store's database",
    of_another_name: "cannot use Django's 'default', the database 'elsewhere', on the batch's "
    "connection to '{}'; use an alias of that",
    swallows: WENT_ON,
    swallows_before_the_server: WENT_ON,
    swallows_in_a_part_without_a_savepoint: WENT_ON,
}


@pytest.mark.parametrize("act", REFUSED)
def test_what_is_refused_names_the_way_out(connection, store, act):
    """Each is a failure of the message, and others of the batch are not committed by it."""
    assert fails(connection, store, act) == (
        f"The handler of Do at job:command-badly, global position 2 "
        f"{REFUSED[act].format(connection.info.dbname)}"
    )


def executes_commit(command, context):
    with context.django(), django_connection.cursor() as cursor:
        Job.objects.create(id="x")
        cursor.execute("COMMIT")


def rolls_back(command, context):
    with context.django():
        transaction.rollback()


def sets_autocommit(command, context):
    with context.django():
        transaction.set_autocommit(True)


@pytest.mark.parametrize("act", [executes_commit, rolls_back, sets_autocommit])
def test_what_django_or_the_consumer_forbids_is_a_failure(connection, store, act):
    """A statement that ends the transaction does not reach the server."""
    assert "Error in" in fails(connection, store, act)


def test_handlers_without_a_connection_have_no_block(connection, store):
    """An async handler, and a context in a test, get one line."""
    errors = []
    job = Component("job", id="job_id", attempts=1)

    @job.handle(Do, once=None)
    async def do(command, entity, context):
        with pytest.raises(HandlerError) as raised:
            context.django()
        errors.append(str(raised.value))

    send(store, "a")
    drain(connection, job)
    with pytest.raises(HandlerError, match="in a test, make the context with"):
        given(job_with(lambda command, context: context.django()), "a").when(Do("a"))
    assert "async def has context.connected()" in errors[0]


# Faults of the environment


def held(database_url):
    """Return a connection that holds the row that handlers want."""
    other = psycopg.connect(database_url)
    other.execute("SELECT FROM jobs WHERE id = 'held' FOR UPDATE")
    return other


def wants_the_row():
    Job.objects.select_for_update(nowait=True).get(id="held")


def wants_the_row_in_a_savepoint():
    with transaction.atomic():
        wants_the_row()


def waits_for_the_row():
    Job.objects.update_or_create(id="held", defaults={"details": {}})  # for a second


def wraps():
    try:
        wants_the_row()
    except OperationalError as error:
        raise KeyError from error


@pytest.mark.parametrize(
    "want", [wants_the_row, wants_the_row_in_a_savepoint, waits_for_the_row, wraps]
)
def test_a_lock_that_is_not_to_be_had_lets_the_batch_run_again(
    connection, store, database_url, want
):
    """An error that Django wraps is no failure of the message, also out of a savepoint."""
    connection.execute("INSERT INTO jobs VALUES ('held')")
    calls = []

    def act(command, context):
        calls.append(command.job_id)
        with context.django():
            Job.objects.create(id=command.job_id)
            if len(calls) == 2:
                with held(database_url):
                    want()

    send(store, "a", "b")
    assert drain(connection, job_with(act)).counts == {"handled": 2}
    assert (jobs(connection), calls) == (["a", "b", "held"], [*"abab"])
    assert stored_letters(connection) == []


def test_a_lost_connection_is_no_fault_of_the_handler(connection, store):
    """A connection that is lost in the block is opened again, and the message handled once."""
    calls = []

    def act(command, context):
        calls.append(command)
        with context.django():
            Job.objects.create(id=command.job_id)
            if len(calls) == 1:
                pid = context.connection.info.backend_pid
                connection.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
                try:
                    Job.objects.count()
                except DatabaseError as error:
                    raise KeyError from error

    send(store, "a")
    with pytest.raises(DatabaseUnavailableError, match="was lost while Do at"):
        drain(connection, job_with(act))
    assert (jobs(connection), stored_letters(connection)) == ([], [])
    assert drain(connection, job_with(act)).counts == {"handled": 1}
    assert (jobs(connection), done(connection)) == (["a"], [("a", "")])


def test_in_a_test_a_connection_serves(connection):
    """`given` and `run_in_memory` take a connection."""

    def act(command, context):
        with context.django():
            Job.objects.create(id=command.job_id)

    component = job_with(act)
    assert given(component, "a", connection=connection).when(Do("a")).outcome == "handled"
    ran = run_in_memory(component, [Do("b")], connection=connection)
    assert (ran.counts, jobs(connection)) == ({"handled": 1}, ["a", "b"])
