"""Who may ask what became of a command, and what they are shown."""

import itertools
import json
import os

import pytest
from psycopg import errors as pg
from psycopg import sql

from reservation import MessageStore, Metadata, MissingRightError
from reservation.postgres.connection import connect
from reservation.store.notifications import set_notices
from reservation.store.schema.roles import grant
from tests.answering import INTO, LIMIT, SENT, WITHIN, Start, Taken, till
from tests.bank import address, drain
from tests.consuming import until
from tests.test_outcome import take

_numbers = itertools.count(1)


@pytest.fixture
def new_role(connection):
    """Give a function that makes a role of a kind for this test."""
    names = []

    def new(kind, *categories):
        name = f"asking_{os.getpid()}_{next(_numbers)}"
        names.append(name)
        grant(connection, kind, name, categories)
        return name

    yield new
    connection.execute("RESET SESSION AUTHORIZATION")
    for name in names:
        connection.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(name)))


@pytest.fixture
def asking(connection, database_url):
    """Give a function that gives a store on a connection of a role."""
    opened = []

    def ask(role):
        other = connect(database_url, autocommit=True)
        opened.append(other)
        other.execute(sql.SQL("SET SESSION AUTHORIZATION {}").format(sql.Identifier(role)))
        return MessageStore(other)

    yield ask
    for one in opened:
        one.close()


def ask(store, **question):
    """Ask the server something that no component would make."""
    known = {"category": "till:command", "types": ["Take", "Start", "Secret"], "idField": "tillId"}
    return store._source.execute(
        "SELECT state, type, data FROM reservation.outcome(%s)", [json.dumps(known | question)]
    ).fetchall()


NOTHING = [("unknown", None, None)]


@pytest.mark.parametrize("options", [INTO, WITHIN, {}], ids=["into", "within", "direct"])
def test_a_sender_learns_the_outcomes_of_its_categories(
    store, connection, new_role, asking, options
):
    """A sender is answered as the owner is, and may read nothing itself."""
    component = till(**options)
    sender = asking(new_role("sender", "till:command", "other"))
    commands = [take(1), take(2, LIMIT + 1), take(3, -1), Start("9", "Ann"), Start("8", "nobody")]
    sender.write(commands[:3], SENT)
    sender.write(commands[3], "till:command-9")
    sender.write(commands[4], "till:command-8")
    for command in commands:
        assert sender.outcome(command, component).state == "pending"
    drain(connection, component)
    for command in commands:
        assert sender.outcome(command, component) == store.outcome(command, component)
    with pytest.raises(MissingRightError):
        list(sender.read_stream("till-1"))


@pytest.mark.parametrize("kind", ["consumer", "auditor"])
def test_who_may_read_may_ask(store, connection, new_role, asking, kind):
    """A consumer and an auditor ask with their own rights."""
    component = till(**INTO)
    store.write(take(1), SENT)
    drain(connection, component)
    assert asking(new_role(kind)).outcome(take(1), component).events == (Taken("t1", "1", 5),)


@pytest.mark.parametrize(
    "category", ["till:command", "till", "%", "till%", "*", "", "TILL:COMMAND"]
)
def test_a_sender_of_another_category_is_refused(store, connection, new_role, asking, category):
    """A category that the sender may not write to is refused, whatever is in it."""
    component = till(**INTO)
    sender = asking(new_role("sender", "other:command"))
    with pytest.raises(MissingRightError, match="may not ask about the category"):
        sender.outcome(take(1), component)
    for question in ({"category": category}, {"category": None}):
        with pytest.raises((pg.InsufficientPrivilege, pg.InvalidParameterValue)):
            ask(sender, **question)
    operator = asking(new_role("operator"))
    with pytest.raises(MissingRightError):
        operator.outcome(take(1), component)


def test_a_question_cannot_look_elsewhere(store, connection, new_role, asking):
    """Whatever streams a question names, what does not follow from its category is as if it was not
    there.
    """
    sender = asking(new_role("sender", "till:command"))
    component = till(**INTO)
    store.write(Start("1", "a secret"), "secret:command-1")
    store.write(Start("1", "a secret"), "secret-1")
    store.write(take(1), SENT)
    drain(connection, component)
    of_secret = Metadata(
        causation_message_stream_name="secret:command-1",
        causation_message_position=0,
        causation_message_global_position=1,
    )
    store.write([Start("1", "a secret")] * 2, "till-7", metadata=of_secret)
    command, event = (
        connection.execute(
            "SELECT id, global_position FROM message_store.messages WHERE stream_name = %s LIMIT 1",
            [name],
        ).fetchone()
        for name in ("secret:command-1", "till-7")
    )
    followed = store.last_message("till-1")
    forwarded = Metadata(  # what a handler of ours passed on is not for our senders either
        causation_message_stream_name=SENT,
        causation_message_position=0,
        causation_message_global_position=3,
    )
    store.write(Start("1", "a secret"), "secret-2", metadata=forwarded)
    elsewhere = (
        {"keyStreams": ["secret-1"]},
        {"keyStreams": ["secret:command-1"]},
        {"keyStreams": ["secret-2"]},
        {"keyStreams": ["secret%", "*", "%"]},
        {"keyStreams": ["secret-1"], "entityStream": "till-7"},
        {"keyStreams": ["secret:command-1"], "entityStream": "till-7"},
        {"keyStreams": ["nothing-1"], "entityStream": "till-1"},
        {"messageId": str(command[0])},
        {"messageId": str(event[0])},
        {"messageId": followed.id},
        {"firstEvent": str(event[0]), "entityStream": "till-7"},
        {"firstEvent": str(command[0]), "entityStream": "till-7"},
        {"sentTo": "secret:command-1", "fields": {}},
        {"sentTo": "secret-1", "content": {"tillId": "1", "owner": "a secret", "sentAt": 0}},
        {"sentTo": "till-7", "fields": {}},
        {"processed": "t1"},
    )
    for question in elsewhere:
        assert ask(sender, **question) == NOTHING, question
        assert ask(store, **question) == NOTHING, question
    # Of its own entities a sender may learn that one is started, and not by what.
    assert ask(sender, initiates=True, entityStream="till-7") == [("conflict", None, None)]
    for question in ({"entityStream": "secret-1", "initiates": True}, {"entityStream": "tillx-1"}):
        with pytest.raises(pg.InvalidParameterValue):
            ask(sender, **question)


def test_it_is_the_session_s_role_that_asks(store, connection, new_role, asking):
    """Code that a sender leaves for another role to run does not ask with the rights of that."""
    sender, auditor = new_role("sender", "till:command"), new_role("auditor")
    run = sql.SQL(
        """
        CREATE SCHEMA trap AUTHORIZATION {0};
        GRANT USAGE ON SCHEMA trap TO PUBLIC;
        SET ROLE {0};
        CREATE FUNCTION trap.ask() RETURNS SETOF text LANGUAGE sql SECURITY DEFINER AS $$
          SELECT state FROM reservation.outcome(
            '{{"category": "secret:command", "types": ["A"], "messageId": null}}') $$;
        RESET ROLE
        """
    )
    connection.execute(run.format(sql.Identifier(sender)))
    with pytest.raises(pg.InsufficientPrivilege, match="may read without being a sender"):
        asking(auditor)._source.execute("SELECT trap.ask()")
    connection.execute("DROP SCHEMA trap CASCADE")


def test_the_function_is_pinned(connection):
    """The functions that senders may call find nothing by the caller's search path."""
    rows = connection.execute(
        "SELECT proname, prosecdef, proconfig::text FROM pg_proc "
        "WHERE pronamespace = 'reservation'::regnamespace AND proname IN "
        "('outcome', 'ask', 'check_may_ask', 'found_outcome')"
    ).fetchall()
    assert {name for name, definer, _ in rows if definer} == {"ask"}
    assert all("search_path=pg_catalog, pg_temp" in settings for _, _, settings in rows)


def test_a_sender_waits_with_notices(connection, new_role, database_url):
    """A sender's role may listen, so its answer comes with the event."""
    from psycopg import conninfo

    role = new_role("sender", "till:command")
    password = sql.Literal(conninfo.conninfo_to_dict(database_url).get("password", "none"))
    connection.execute(
        sql.SQL("ALTER ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(role), password)
    )
    set_notices(connection, True)
    component = till(**INTO)
    own = conninfo.make_conninfo(address(connection), user=role)
    with MessageStore.open(own) as sender:
        sender.write(take(1), SENT)

        def listeners():  # none, if the time was over before it was connected
            assert sender.wait_for(take(1), component, timeout=0.5).state == "pending"
            return sender._listeners._idle.get("till")

        (listener,) = until(listeners)
        assert listener.missing is None
        drain(connection, component)
        assert sender.wait_for(take(1), component).state == "handled"
