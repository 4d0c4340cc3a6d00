"""What a sender's role can do to others: nothing but what SECURITY.md names.

Each test logs in as such a role and calls what it may call, past the clients of this package.
"""

import contextlib
import json
import random
import re
import string
import textwrap
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from psycopg import connect, errors

import consumers
from reservation import Component, MessageStore
from reservation.errors import MissingRightError, RefusedError
from reservation.strategies import DatabaseRevisions, Processed, Revisions, StateBased
from reservation.testing import pass_time
from tests.apps.bank import address, drain
from tests.apps.unpaid import SENT, Expire, Order, Place
from tests.consumers.builders import case, read_again, stored_letters
from tests.store.test_roles import as_login, cancel, new_role, run  # noqa: F401  a fixture
from tests.store.test_scheduling import PAST, refusing, rows
from tests.support.commands import invoke_cli
from tests.support.started import EXAMPLES

ROOT = EXAMPLES.parent

_letters = random.Random(7).choices(string.ascii_letters + string.digits, k=3000)
# Too long for an index, and of letters that do not compress.
LONG = f"a-{''.join(_letters)}"[:2900]
WRITE = "SELECT reservation.write_message(%(id)s, %(stream)s, %(type)s, '{}', %(metadata)s, NULL)"
SCHEDULE = (
    "SELECT reservation.schedule_message("
    "%(id)s, %(stream)s, %(type)s, %(data)s, %(metadata)s, %(at)s, NULL)"
)
CALLS = {
    "write": WRITE,
    "write many": "SELECT reservation.write_messages(ARRAY[%(id)s], ARRAY[%(stream)s], "
    "ARRAY[%(type)s], ARRAY['{}'::jsonb], ARRAY[%(metadata)s::jsonb], NULL)",
    "commit": "CALL reservation.commit_message("
    "%(id)s, %(stream)s, %(type)s, '{}', %(metadata)s, NULL, NULL)",
    "schedule": SCHEDULE,
}


def grant(database_url, kind, role, *categories):
    """Grant a role what it may do, by the command line."""
    options = [text for category in categories for text in ("--category", category)]
    env = {"RESERVATION_DATABASE_URL": database_url}
    done = invoke_cli("store", "grants", kind, role, *options, env=env)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def login(connection, database_url, new_role):  # noqa: F811
    """Give a function that logs in as a new sender of some categories."""
    sessions = []

    def new(*categories):
        role = new_role()
        grant(database_url, "sender", role, *categories)
        session = connect(as_login(connection, database_url, role), autocommit=True)
        sessions.append(session)
        return session

    yield new
    for session in sessions:
        session.close()


def values(stream="a-1", type_="T", message_id=None, **others):
    """Return the values of a call that writes or schedules a message."""
    given = {"id": message_id or uuid.uuid4(), "stream": stream, "type": type_}
    return {**given, "metadata": None, "data": "{}", "at": PAST, **others}


def written(connection):
    """Return the streams that hold messages."""
    query = "SELECT DISTINCT stream_name FROM message_store.messages ORDER BY 1"
    return [name for (name,) in connection.execute(query)]


REFUSED = [
    ("is 2900 bytes long; the store takes 2600", {"stream": LONG}),
    ("is 2602 bytes long", {"stream": "a-" + "\u00e4" * 1300}),
    ("holds a control character", {"stream": "a-1\n"}),
    ("holds a control character", {"stream": "a-\u0085"}),
    ("names no stream", {"stream": "a"}),
    ("names no stream", {"stream": "a-"}),
    ("The type .* is 2900 bytes long", {"type_": LONG}),
    (
        "correlation stream are 1 and 2900 bytes long",
        {"metadata": f'{{"correlationStreamName": "{LONG.replace("-", "x")}"}}'},
    ),
]


def test_a_name_that_the_client_refuses_is_refused_by_the_server(connection, login):
    """A sender cannot have the log or the schedule take a name that is not one."""
    sender = login("a")
    for name, call in CALLS.items():
        for problem, given in REFUSED:
            with case(name), pytest.raises(errors.CheckViolation, match=problem):
                sender.execute(call.encode(), values(**given))
    assert (rows(connection), written(connection)) == ([], [])


def test_a_name_that_the_client_takes_is_taken_by_the_server(store, login, database_url):
    """What the client lets through is written, however unusual."""
    sender = login("a")
    for stream in ("a-" + "\u00e4" * 1299, "a-b c", "a-1-2+3", "a-\u00a0"):
        sender.execute(WRITE.encode(), values(stream))
        sender.execute(SCHEDULE.encode(), values(stream))
        assert pass_time(database_url, "0s") == 1
        assert store.stream_version(stream) == 1


def test_a_scheduled_message_that_cannot_be_written_is_dead_and_holds_up_nobody(
    connection, database_url
):
    """One with a name that no index takes is named, and left alone."""
    store = MessageStore(connection)
    connection.execute(
        "INSERT INTO reservation.scheduled (id, due_at, stream_name, type, data, metadata) "
        "VALUES (%(id)s, %(at)s, %(stream)s, %(type)s, %(data)s, %(metadata)s)",
        values(LONG),
    )
    store.write(Expire("1"), "a-1", at=PAST)
    store.write(Place("2"), f"{SENT}-2", at=PAST)
    assert drain(connection, orders()).counts["handled"] == 1
    assert {"a-1", f"{SENT}-2"} <= set(written(connection))
    assert rows(connection, "attempts, dead_at IS NULL") == [(1, False), (0, True)]
    env = {"RESERVATION_DATABASE_URL": database_url}
    listed = json.loads(invoke_cli("scheduled", "list", "--json", env=env).stdout)["scheduled"]
    assert [one["state"] for one in listed] == ["dead", "scheduled"]
    assert "index row" in listed[0]["error"]
    status = json.loads(invoke_cli("status", "--json", env=env).stdout)["scheduled"]
    assert (status["refused"], status["dead"]) == (1, 1)


def test_what_the_log_refuses_too_often_is_dead_until_it_is_retried(
    connection,
    store,
    database_url,
    new_role,  # noqa: F811
):
    """After sixty attempts nobody tries again but on request of an operator."""
    named = store.write(Expire("1"), "a-1", at=PAST)
    with refusing(connection, "true"):
        connection.execute("UPDATE reservation.scheduled SET attempts = 59, attempt_at = now()")
        with pytest.raises(RefusedError, match="refuses 1 messages"):
            pass_time(database_url, "0s")
        assert pass_time(database_url, "0s") == 0
    assert rows(connection, "attempts, error, dead_at IS NULL") == [(60, "not this one", False)]
    operator = new_role()
    grant(database_url, "operator", operator)
    env = {"RESERVATION_DATABASE_URL": as_login(connection, database_url, operator)}
    done = invoke_cli("scheduled", "retry", str(named), str(uuid.UUID(int=7)), env=env)
    assert (done.returncode, done.stdout) == (1, f"{named}: retried\n{uuid.UUID(int=7)}: unknown\n")
    assert pass_time(database_url, "0s") == 1


def test_what_is_lacking_in_the_database_makes_no_scheduled_message_dead(
    connection, store, database_url
):
    """A missing table of a trigger is waited for, however often the log refuses."""
    store.write(Expire("1"), "a-1", at=PAST)
    connection.execute(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO notes VALUES (1); RETURN NEW; END $$;"
        "CREATE TRIGGER note BEFORE INSERT ON message_store.messages FOR EACH ROW "
        "EXECUTE FUNCTION note()"
    )
    connection.execute("UPDATE reservation.scheduled SET attempts = 500")
    with pytest.raises(RefusedError):
        pass_time(database_url, "0s")
    assert rows(connection, "attempts, dead_at") == [(501, None)]


@pytest.mark.parametrize("refused_by", ["a trigger", "the ids of others"])
def test_many_refused_messages_of_one_category_do_not_hold_up_another(
    connection, store, login, database_url, refused_by
):
    """One call writes what is due to another category, before and after they are refused."""
    sender, n = login("a"), 3000
    ids = [uuid.uuid4() for _ in range(n)]
    sender.execute(
        "SELECT reservation.schedule_messages(%s, %s, %s, %s::jsonb[], %s::jsonb[], %s)",
        [ids, ["a-2"] * n, ["Bad"] * n, ["{}"] * n, [None] * n, [PAST] * n],
    )
    if refused_by == "the ids of others":
        sender.execute(
            "SELECT reservation.write_messages(%s, %s, %s, %s::jsonb[], %s::jsonb[], NULL)",
            [ids, ["a-1"] * n, ["T"] * n, ["{}"] * n, [None] * n],
        )
    with refusing(connection, "NEW.type = 'Bad'"):
        for number in range(5):
            store.write(Expire(str(number)), "b-1", after="0s")
            with contextlib.suppress(RefusedError):
                pass_time(database_url, "0s")
            assert store.stream_version("b-1") == number


def orders():
    """Return a component whose handler schedules a command in its own category."""
    component = Component("order", entity=Order, id="order_id")

    @component.handle(Place, once=None)
    def place(command, entity, context):
        context.write(Expire(command.order_id), f"{SENT}-1", after="1h")

    return component


def command_of(sender, connection):
    """Have a sender send a command, and return what its handler schedules, as a sender can tell."""
    command_id = uuid.uuid4()
    sender.execute(
        WRITE.replace("'{}'", "%(data)s").encode(),
        values(f"{SENT}-1", "Place", command_id, data='{"orderId": "1"}'),
    )
    drain(connection, orders())
    ((named, metadata),) = connection.execute(
        "DELETE FROM reservation.scheduled RETURNING id, metadata::text"
    ).fetchall()
    connection.execute("DELETE FROM message_store.messages WHERE stream_name = 'order-1'")
    read_again(connection)
    return values(f"{SENT}-1", "Expire", named, data='{"orderId": "1"}', metadata=metadata)


@pytest.mark.parametrize("beforehand", ["cancelled", "later", "other content", "other category"])
def test_who_knows_the_id_of_what_a_handler_schedules_is_not_in_its_way(
    connection, login, database_url, beforehand
):
    """What a sender scheduled or cancelled under the id changes nothing of the handler's."""
    sender, at = login(SENT, "a"), datetime(2100, 1, 1, tzinfo=UTC)
    of_handler = command_of(sender, connection)
    others = {"other content": {"data": "{}"}, "other category": {"stream": "a-1"}}
    sender.execute(SCHEDULE.encode(), of_handler | {"at": at} | others.get(beforehand, {}))
    if beforehand == "cancelled":
        assert cancel(sender, of_handler["id"]) == "cancelled"
    assert drain(connection, orders()).counts["handled"] == 1
    with login(SENT) as another:
        assert cancel(another, of_handler["id"]) == (
            "unknown" if beforehand == "other category" else "cancelled"
        )
    connection.execute("UPDATE reservation.scheduled SET due_at = now() WHERE NOT is_sent")
    assert pass_time(database_url, "0s") == 1
    found = connection.execute(
        "SELECT type, data->>'orderId' FROM message_store.messages WHERE id = %s",
        [of_handler["id"]],
    )
    assert found.fetchall() == [("Expire", "1")]
    assert stored_letters(connection) == []


def test_an_id_that_somebody_took_makes_the_scheduled_message_dead_at_once(
    connection, store, login, database_url
):
    """Who writes another message under the id costs that message alone, and nobody waits."""
    sender = login(SENT)
    of_handler = command_of(sender, connection)
    drain(connection, orders())
    sender.execute(WRITE.encode(), of_handler)
    store.write(Expire("2"), f"{SENT}-2", at=PAST)
    with pytest.raises(RefusedError, match="refuses 1 messages"):
        pass_time(database_url, "1h")
    assert store.stream_version(f"{SENT}-2") == 0
    assert rows(connection, "attempts, error, dead_at IS NOT NULL") == [
        (1, f"Message id {of_handler['id']} is in use for another message", True)
    ]


def test_two_senders_of_an_id_are_not_in_each_others_way(connection, login, database_url):
    """Each may schedule and cancel under it; the log takes the first that is due."""
    first, second, named = login("a"), login("b"), uuid.uuid4()
    first.execute(SCHEDULE.encode(), values("a-1", message_id=named))
    assert cancel(second, named) == "unknown"
    second.execute(SCHEDULE.encode(), values("b-1", message_id=named))
    assert cancel(first, named) == "cancelled"
    assert pass_time(database_url, "0s") == 1
    assert written(connection) == ["b-1"]
    assert (cancel(first, named), cancel(second, named)) == ("cancelled", "written")


@pytest.mark.parametrize("scheduled_by", ["a sender", "a handler"])
def test_who_has_written_a_message_may_not_cancel_another_of_its_id(
    connection, store, login, scheduled_by
):
    """Only what is scheduled to a category counts for the right to cancel it."""
    attacker, owner, named = login("a"), login("b"), uuid.uuid4()
    session = owner if scheduled_by == "a sender" else connection
    session.execute(SCHEDULE.encode(), values("b-1", message_id=named))
    attacker.execute(WRITE.encode(), values(message_id=named))
    assert cancel(attacker, named) == "written"
    assert rows(connection) == [(named, False, 0)]
    assert cancel(session, named) == "cancelled"


# Ids and revisions


def test_a_conflict_of_ids_names_no_stream_of_others_to_a_sender(connection, store, login):
    """A sender learns that the id is in use; who may read the log learns where."""
    sender = login("a")
    store.write(Expire("1"), "secret-1")
    named = uuid.UUID(next(store.read_stream("secret-1")).id)
    for name, call in CALLS.items():
        with case(name):
            with pytest.raises(errors.UniqueViolation) as caught:
                sender.execute(call.encode(), values(message_id=named))
            told = (caught.value.diag.message_primary, caught.value.diag.message_detail)
            assert told == (f"Message id {named} is in use for another message", None)
    with pytest.raises(errors.UniqueViolation, match="in stream secret-1"):
        connection.execute(WRITE.encode(), values(message_id=named))


def draw(session, name, **named):
    """Draw a revision under a name."""
    with session.transaction():
        return DatabaseRevisions(session, **named).next(name)


def test_a_sender_draws_no_revision_of_another_entity(connection, login):
    """It neither sees nor holds up the counter of an entity that its categories are not of."""
    sender = login("shop:command")
    for name in ("account-1", "shopping-1", "shop:other-1", "shop:commander-1"):
        with pytest.raises(MissingRightError, match=f"may not draw revisions for {name};"):
            draw(sender, name)
        assert draw(connection, name) == 1
    own = ("shop:command", "shop-1", "shop:command-1")
    assert [draw(sender, name) for name in own] == [1, 1, 1]


def test_only_a_sender_that_was_granted_it_draws_for_all_entities(
    connection,
    login,
    database_url,
    new_role,  # noqa: F811
):
    """The counter of all entities is shared, so it takes a grant of its own."""
    with pytest.raises(MissingRightError, match="may not draw revisions for all entities;"):
        draw(login("shop:command"), "", scope="global")
    role = new_role()
    env = {"RESERVATION_DATABASE_URL": database_url}
    granted = [
        "store",
        "grants",
        "sender",
        role,
        "--category",
        "shop:command",
        "--global-revisions",
    ]
    done = invoke_cli(*granted, env=env)
    assert f"{role} may write to shop:command, draw revisions for all entities" in done.stderr
    with connect(as_login(connection, database_url, role), autocommit=True) as sender:
        assert draw(sender, "shop-1", scope="global") == 1
        for stream in ("-1", ""):
            with pytest.raises((errors.CheckViolation, errors.InsufficientPrivilege)):
                sender.execute(WRITE.encode(), values(stream))
    assert (
        "--global-revisions is for a sender"
        in invoke_cli("store", "grants", "auditor", role, "--global-revisions", env=env).stderr
    )


def test_a_role_that_takes_the_name_of_another_has_none_of_its_requests(
    connection,
    database_url,
    new_role,  # noqa: F811
):
    """An answer to an HTTP request is that of a role, and not of whoever has its name later."""
    role, other, request = new_role(), new_role(create=False), uuid.uuid4()
    grant(database_url, "sender", role, "a")
    begin = "SELECT fingerprint FROM reservation.begin_http_request(%s, %s)"
    with connect(as_login(connection, database_url, role), autocommit=True) as session:
        assert session.execute(begin, [request, b"first"]).fetchall() == [(b"first",)]
    run(connection, "ALTER ROLE {} RENAME TO {}", role, other)
    run(connection, "CREATE ROLE {}", role)
    grant(database_url, "sender", role, "a")
    with connect(as_login(connection, database_url, role), autocommit=True) as session:
        assert session.execute(begin, [request, b"second"]).fetchall() == [(b"second",)]
    with connect(as_login(connection, database_url, other), autocommit=True) as session:
        assert session.execute(begin, [request, b"third"]).fetchall() == [(b"first",)]


def test_senders_without_advisory_locks_send_all_the_same(
    connection,
    store,
    login,
    database_url,
    new_role,  # noqa: F811
):
    """What the page on roles advises keeps a sender from locking, and from nothing else."""
    page = (ROOT / "docs/how-to/grant-roles.md").read_text()
    advice = textwrap.dedent(re.search(r"( *DO \$\$.*?END \$\$;)", page, re.DOTALL)[1])
    consumer, (owner,) = new_role(), connection.execute("SELECT current_user").fetchone()
    grant(database_url, "consumer", consumer)
    connection.execute(
        advice.replace("bank", consumer).replace("store_owner", f'"{owner}"').encode()
    )
    with login(SENT, "a") as sender:
        for call in (
            "pg_advisory_lock(1)",
            "pg_advisory_xact_lock_shared(1)",
            "pg_try_advisory_lock(1, 2)",
        ):
            with pytest.raises(errors.InsufficientPrivilege, match="advisory"):
                sender.execute(f"SELECT {call}".encode())
        for call in CALLS.values():
            sender.execute(call.encode(), values())
        client = MessageStore(sender)
        client.write(Place("1"), f"{SENT}-1")
        client.cancel(client.write(Place("1"), f"{SENT}-1", after="1h"))
        assert draw(sender, "order-1") == 1
        assert client.outcome(Place("1"), orders()) is not None
    with connect(as_login(connection, database_url, consumer), autocommit=True) as session:
        assert consumers.drain(orders(), address(session)).counts["handled"] == 1
    assert pass_time(as_login(connection, database_url, consumer), "0s") == 0
    run(connection, "SET ROLE {}", "message_store")
    written_by_a_client = "SELECT message_store.write_message(%s, 'c-1', 'T', '{}')"
    assert connection.execute(written_by_a_client, [str(uuid.uuid4())]).fetchone() == (0,)


@dataclass(frozen=True)
class Limit:
    """A command whose sender chooses all that is kept of it."""

    limit_id: str
    key: str
    revision: int
    source: str


@dataclass
class Limits:
    """Nothing."""


LIMITS = {
    type(f"LimitBy{name}", (Limit,), {}): once
    for name, once in {
        "Processed": Processed(key="key"),
        "Revisions": Revisions(),
        "States": StateBased(),
    }.items()
}


def limits():
    """Return a component whose commands are recognized in a way each."""
    component = Component("limit", entity=Limits, id="limit_id", attempts=1)
    for command, once in LIMITS.items():
        component.handle(command, once=once)(lambda command, entity, context: None)
    return component


def test_a_text_that_no_index_takes_is_a_fault_of_its_command(connection, login):
    """Whatever a consumer keeps of a command, one that it cannot keep holds up no other."""
    sender, bad = login("limit:command"), set()
    cases = [
        (command.__name__, field) for command in LIMITS for field in ("limitId", "key", "source")
    ]
    for type_, too_long in cases:
        for n, changed in enumerate(({}, {too_long: LONG.replace("-", "x")}, {}), 1):
            name = f"{type_}.{too_long}.{n}"
            given = {"limitId": name, "key": name, "revision": n, "source": "s"}
            sender.execute(
                WRITE.replace("'{}'", "%(data)s").encode(),
                values(f"limit:command-{name}", type_, data=json.dumps(given | changed)),
            )
            bad |= {(f"limit:command-{name}", "dead")} if changed else set()
    counts = drain(connection, limits()).counts
    assert {(one.stream_name, one.state) for one in stored_letters(connection)} <= bad
    assert counts["handled"] + counts["dead"] == 3 * len(cases)


def test_the_page_on_roles_shows_who_holds_up_a_category(connection, database_url, login):
    """Its query names the session that holds the lock, whatever the sign of the hash."""
    page = (ROOT / "docs/how-to/grant-roles.md").read_text()
    query = re.search(r"(SELECT l\.pid.*?);", page, re.DOTALL)[1]
    with login("a") as sender:
        for category in ("account:command", "order:command", "a", "b"):
            ((number,),) = connection.execute("SELECT message_store.hash_64(%s)", [category])
            sender.execute("SELECT pg_advisory_lock(%s)", [number])
            shown = connection.execute(query.replace("account:command", category).encode())
            assert [row[:3] for row in shown] == [(sender.info.backend_pid, sender.info.user, True)]
