"""Who may ask what became of a command, and what they are shown."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from psycopg import connect
from psycopg import errors as pg

from reservation import MessageStore, Metadata
from reservation.errors import MissingRightError
from tests.apps.answering import INTO, LIMIT, SENT, Start, Taken, till
from tests.apps.bank import drain
from tests.store.builders import as_login, grant, new_role, run
from tests.store.test_outcome import take
from tests.support.consuming import until

__all__ = ["new_role"]  # a fixture


@pytest.fixture
def asking(connection, database_url, new_role):
    """Give a function that gives a connection of a new role of a kind."""
    opened = []

    def ask(kind, *categories):
        role = new_role()
        grant(connection, kind, role, categories)
        opened.append(connect(database_url, autocommit=True))
        run(opened[-1], "SET SESSION AUTHORIZATION {}", role)
        return opened[-1]

    yield ask
    for one in opened:
        one.close()


def ask(connection, **question):
    """Ask the server something that no component would make."""
    known = {"category": "till:command", "types": ["Take", "Start", "Secret"], "idField": "tillId"}
    return connection.execute(
        "SELECT state, type, data FROM reservation.outcome(%s)", [json.dumps(known | question)]
    ).fetchall()


NOTHING = [("unknown", None, None)]


@pytest.mark.parametrize("options", [INTO, {}], ids=["into", "direct"])
def test_a_sender_learns_the_outcomes_of_its_categories(store, connection, asking, options):
    """A sender is answered as the owner is, and may read nothing itself."""
    component = till(**options)
    sender = MessageStore(asking("sender", "till:command", "other"))
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
def test_who_may_read_may_ask(store, connection, asking, kind):
    """A consumer and an auditor ask with their own rights."""
    component = till(**INTO)
    store.write(take(1), SENT)
    drain(connection, component)
    asked = MessageStore(asking(kind)).outcome(take(1), component)
    assert asked.events == (Taken("t1", "1", 5),)


def test_a_sender_of_another_category_is_refused(asking):
    """A category that the sender may not write to is refused, whatever is in it."""
    sender = asking("sender", "other:command")
    for one in (sender, asking("operator")):
        with pytest.raises(MissingRightError):
            MessageStore(one).outcome(take(1), till(**INTO))
    with pytest.raises(pg.InsufficientPrivilege, match="may not ask about the category"):
        ask(sender)
    for category in ("till", "%", "till%", "*", "", "TILL:COMMAND", None):
        with pytest.raises((pg.InsufficientPrivilege, pg.InvalidParameterValue)):
            ask(sender, category=category)


def test_a_question_cannot_look_elsewhere(store, connection, asking):
    """Whatever streams a question names, what does not follow from its category is as if it was not
    there.
    """
    sender = asking("sender", "till:command")
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
        assert ask(connection, **question) == NOTHING, question
    # Only who has sent a command for a stream learns that another source has started it.
    assert ask(sender, initiates=True, entityStream="till-7") == NOTHING
    assert ask(sender, initiates=True, entityStream="till-8") == NOTHING
    of_sender = {"initiates": True, "entityStream": "till-7", "sentTo": "till:command-7"}
    of_sender["content"] = {"tillId": "7", "owner": "Ann", "sentAt": 0}
    assert ask(sender, **of_sender) == NOTHING
    MessageStore(sender).write(Start("7", "Ann"), "till:command-7")
    assert ask(sender, **of_sender) == [("conflict", None, None)]
    for question in ({"entityStream": "secret-1", "initiates": True}, {"entityStream": "tillx-1"}):
        with pytest.raises(pg.InvalidParameterValue):
            ask(sender, **question)


def test_it_is_the_session_s_role_that_asks(connection, new_role, asking):
    """Code that a sender leaves for another role to run does not ask with the rights of that."""
    sender = new_role()
    grant(connection, "sender", sender, ["till:command"])
    run(connection, "CREATE SCHEMA trap AUTHORIZATION {}", sender)
    connection.execute("GRANT USAGE ON SCHEMA trap TO PUBLIC")
    run(connection, "SET ROLE {}", sender)
    question = '{"category": "secret:command", "types": ["A"], "messageId": null}'
    connection.execute(
        "CREATE FUNCTION trap.ask() RETURNS SETOF text LANGUAGE sql SECURITY DEFINER AS "
        f"$$ SELECT state FROM reservation.outcome('{question}') $$"
    )
    connection.execute("RESET ROLE")
    with pytest.raises(pg.InsufficientPrivilege, match="may read without being a sender"):
        asking("auditor").execute("SELECT trap.ask()")


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
    role, component = new_role(), till(**INTO)
    grant(connection, "sender", role, ["till:command"])
    listening = (
        "SELECT FROM pg_stat_activity WHERE usename = %s AND state = 'idle' "
        "AND query LIKE '%%expect_notice(%%'"
    )
    with (
        MessageStore.open(as_login(connection, database_url, role)) as sender,
        ThreadPoolExecutor(1) as thread,
    ):
        sender.write(take(1), SENT)
        answer = thread.submit(sender.wait_for, take(1), component, timeout=120)
        until(lambda: connection.execute(listening, [role]).fetchall())
        drain(connection, component)
        assert answer.result().state == "handled"
