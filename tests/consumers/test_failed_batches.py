"""What a failed batch costs the messages beside the one that failed, and whose fault an error is.

The cost is counted in calls of a handler: each of them may have effects outside the database.
"""

import asyncio
import os
from collections import Counter
from dataclasses import dataclass

import psycopg
import pytest
from structlog.testing import capture_logs

from reservation import Key
from reservation.errors import StoreError
from reservation.strategies import MessageIdInEvents, PositionInEvents, Processed
from tests.consumers.builders import (
    TILLS,
    Pay,
    Till,
    letters,
    pay,
    reasons,
    sigint_taken_over,
)

BATCH, BAD = 200, 100
ALL = [f"{n}a" for n in range(BATCH)]
OTHERS = [name for name in ALL if name != f"{BAD}a"]


def send_all(till, names=ALL):
    till.store.write([pay(name) for name in names], f"{TILLS}-x")


def calls_of_others(till):
    """Return how often handlers of messages that did not fail were called."""
    return Counter(calls for name, calls in Counter(till.calls).items() if name not in till.failing)


def batches(logged):
    """Return the sizes of the batches that were committed."""
    return [event["read"] for event in logged if event["event"] == "batch_committed"]


# Calls of the others


def test_a_batch_is_committed_without_the_message_whose_handler_raised(connection):
    """No other handler is called more than once."""
    till = Till(connection, attempts=2)
    till.failing = {f"{BAD}a"}
    send_all(till)
    assert till.drain() == {"handled": BATCH - 1, "dead": 1}
    assert calls_of_others(till) == {1: BATCH - 1}
    assert till.calls.count(f"{BAD}a") == 2
    assert till.paid() == OTHERS
    assert reasons(connection) == [("dead", "handler", 2)]


@pytest.mark.parametrize(
    "once", [None, Processed(), MessageIdInEvents(), PositionInEvents()], ids=str
)
def test_every_second_handler_raises_and_the_others_are_called_once(connection, once):
    """However many messages fail, by any strategy."""
    till = Till(connection, once=once)
    till.failing = set(ALL[1:16:2])
    send_all(till, ALL[:16])
    till.drain()
    assert calls_of_others(till) == {1: 8}
    assert till.paid() == ALL[:16:2]
    assert len(letters(connection)) == 8


def test_a_handler_that_used_the_connection_and_raised_has_those_before_it_called_twice(connection):
    """The first time; from then on a savepoint is what is rolled back."""
    till = Till(connection)
    till.before = lambda command, context: context.connection.execute("SELECT 1")
    till.failing = {f"{BAD}a", f"{BAD + 20}a"}
    send_all(till)
    till.drain()
    counted = Counter(till.calls)
    assert {counted[name] for name in ALL[:BAD]} == {2}
    assert {counted[name] for name in ALL[BAD + 1 :]} == {1}
    assert till.paid() == [name for name in ALL if name not in till.failing]


def test_in_a_batch_with_async_handlers_the_others_are_called_once(connection):
    """Also where a handler that is not async raised."""

    @dataclass(frozen=True)
    class Wait(Pay):
        """A payment whose handler is async."""

    till = Till(connection)

    @till.component.handle(Wait, once=None)
    async def wait(command, entity, context):
        return till.handle(command, entity, context)

    till.failing = {"50a"}
    names = ALL[:100]
    till.store.write(
        [(Wait if n % 2 else Pay)(name, str(n)) for n, name in enumerate(names)], f"{TILLS}-x"
    )
    till.drain()
    assert max(calls_of_others(till)) == 1
    assert till.paid() == [name for name in names if name != "50a"]


def refuse(connection, pay_id):
    """Have the store refuse the event of a payment, in a statement that names no message."""
    connection.execute(
        "CREATE TABLE taken (n int PRIMARY KEY);"
        "INSERT INTO taken VALUES (1);"
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "INSERT INTO public.taken VALUES (1); RETURN NULL; END $$;"
        "CREATE TRIGGER refuse AFTER INSERT ON message_store.messages FOR EACH ROW "
        f"WHEN (NEW.type = 'Paid' AND NEW.data->>'payId' = '{pay_id}') EXECUTE FUNCTION refuse()"
    )


def test_a_message_that_a_statement_is_refused_for_is_found_by_halving(connection):
    """A handler is called as often as a batch can be halved, and once; batches then grow again."""
    refuse(connection, f"{BAD}a")
    till = Till(connection)
    send_all(till)
    with capture_logs() as logged:
        assert till.drain(batch_size=BATCH) == {"handled": BATCH - 1, "dead": 1}
    counted = Counter(till.calls)
    assert max(counted[name] for name in OTHERS) <= 1 + 8  # 2**8 > 200
    assert till.paid() == OTHERS
    assert reasons(connection) == [("dead", "write", 1)]
    grown = batches(logged)[-6:-1]
    assert grown == [2, 4, 8, 16, 32]


# Whatever component code raises


class Own(BaseException):
    pass


def cyclic():
    error = ValueError("secret")
    error.__cause__ = error
    return error


RAISED = {
    "1a": asyncio.CancelledError("secret"),
    "2a": KeyboardInterrupt("secret"),
    "3a": GeneratorExit("secret"),
    "4a": SystemExit("secret"),
    "5a": Own("secret"),
    "6a": cyclic(),
    "7a": MemoryError("secret"),
    "8a": RecursionError("secret"),
}


def test_whatever_a_handler_raises_is_a_fault_of_its_message(connection, caplog):
    """Also what is not derived from Exception; its text is neither logged nor stored."""
    till = Till(connection)
    till.failing = set(RAISED)
    till.error = lambda text: RAISED[till.calls[-1]]
    till.send("9a", *RAISED, "10a")
    with sigint_taken_over():
        assert till.drain() == {"handled": 2, "dead": len(RAISED)}
    assert reasons(connection) == [("dead", "handler", 1)] * len(RAISED)
    assert till.paid() == ["9a", "10a"]
    assert "secret" not in str(letters(connection)) + caplog.text


@pytest.mark.parametrize(
    ("code", "reason"), [("class", "undecodable"), ("key", "handler"), ("former key", "handler")]
)
def test_whatever_a_class_or_a_key_function_raises_is_a_fault_of_the_message(
    connection, code, reason
):
    """The dead letter names the place."""

    def checked(of, command):
        if of == code and command.pay_id == "2a":
            raise asyncio.CancelledError("secret")
        return f"{of}-{command.pay_id}"

    class Checked(Pay):
        def __post_init__(self):
            checked("class", self)

    Checked.__name__ = "Pay"
    till = Till(connection)
    till.component = type(till.component)("till", id="till_id", attempts=1)
    key = Key(lambda c: checked("key", c), former_key=lambda c: checked("former key", c))
    till.component.handle(Checked, key=key)(till.handle)
    till.send("1a", "2a", "3a")
    till.drain()
    (letter,) = letters(connection)
    assert (letter["reason"], letter["attempts"]) == (reason, 1)
    assert "raised CancelledError in " in letter["error"]
    assert "checked (tests/consumers/test_failed_batches.py:" in letter["error"]
    assert sorted(till.paid()) == ["1a", "3a"]


@pytest.mark.parametrize("end", [None, RuntimeError("secret"), SystemExit(7)], ids=str)
def test_a_copy_of_the_process_that_leaves_a_handler_ends(connection, end):
    """The process itself goes on, and the copy's exception is no fault of the message."""
    till = Till(connection)
    children = []

    def fork(command, context):
        if child := os.fork():
            children.append(child)
        elif end is not None:
            raise end

    till.before = fork
    till.send("1a")
    assert till.drain() == {"handled": 1}
    (child,) = children
    _, status = os.waitpid(child, 0)
    assert os.WIFEXITED(status)
    assert till.paid() == ["1a"]


def test_a_copy_of_the_process_that_leaves_a_key_function_ends_as_it_asks(connection):
    """With the status of its SystemExit."""
    children = []

    def key(command):
        child = os.fork()
        if not child:
            raise SystemExit(7)
        children.append(child)
        return command.pay_id

    till = Till(connection, once=None)
    till.component = type(till.component)("till", id="till_id")
    till.component.handle(Pay, key=Key(key))(till.handle)
    till.send("1a")
    till.drain()
    assert {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children} == {7}
    assert till.paid() == ["1a"]


# Errors of the database


def raise_at_commit(connection):
    """Make a table whose rows raise the SQLSTATE that they hold, at the commit."""
    connection.execute(
        "CREATE TABLE own (state text);"
        "CREATE FUNCTION raise() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "RAISE 'secret' USING ERRCODE = NEW.state; END $$;"
        "CREATE CONSTRAINT TRIGGER raise AFTER INSERT ON own DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION raise()"
    )


def writing_states(connection, states):
    """Return a till whose payments each write one of the states; None is written by no one."""
    till = Till(connection)

    def write(command, context):
        if state := states[int(command.till_id)]:
            context.connection.execute("INSERT INTO own VALUES (%s)", [state])

    till.before = write
    till.send(*(f"{n}a" for n in range(len(states))))
    return till


def test_an_error_that_code_in_the_database_raises_at_the_commit_is_the_messages(
    connection, caplog
):
    """Each message that causes one is dead, without the text of the error; others are handled."""
    raise_at_commit(connection)
    states = ["P0001", None, "P0004", "21000", "38000", "RS001", "ZZZZZ", "99999"]
    till = writing_states(connection, states)
    assert till.drain() == {"handled": 1, "dead": 7}
    assert till.paid() == ["1a"]
    assert reasons(connection) == [("dead", "write", 1)] * 7
    for letter, state in zip(letters(connection), filter(None, states), strict=True):
        assert "Cannot write the effects of Pay" in letter["error"]
        assert f"refused the commit with SQLSTATE {state}" in letter["error"]
    assert "secret" not in str(letters(connection)) + caplog.text


ENVIRONMENT = ["25006", "42501", "42P01", "53100", "55000", "57014", "58030", "F0000", "XX000"]


def test_an_error_of_the_environment_at_the_commit_is_no_fault_of_the_message(connection):
    """It ends a drain, and counts no attempt."""
    raise_at_commit(connection)
    states = [None]
    till = writing_states(connection, states)
    for states[0] in ENVIRONMENT:
        with pytest.raises(StoreError):
            till.drain()
    states[0] = None
    assert till.drain() == {"handled": 1}
    assert letters(connection) == []


def test_an_unknown_error_of_a_statement_of_ours_is_one_of_the_environment(connection):
    """Only at the commit is what code in the database raises a fault of the message."""
    connection.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "RAISE 'secret'; END $$;"
        "CREATE TRIGGER refuse AFTER INSERT ON message_store.messages FOR EACH ROW "
        "WHEN (NEW.type = 'Paid') EXECUTE FUNCTION refuse()"
    )
    till = Till(connection)
    till.send("1a")
    with pytest.raises(StoreError):
        till.drain()
    assert letters(connection) == []


OTHER_CONSTRAINTS = {
    "1a": "(1, 2, 2, 2, 2)",  # messages_pkey
    "2a": "(2, 1, 2, 2, 2)",  # messages_id
    "3a": "(2, 2, 1, 2, 2)",  # messages_stream
    "4a": "(2, 2, 2, 0, 2)",  # expected_version
    "5a": "(2, 2, 2, 2, 1)",  # message_id
}


def test_a_constraint_of_another_table_is_not_mistaken_for_one_of_the_log(connection):
    """A trigger that meets it fails its message alone, whatever the constraint's name."""
    fill = "".join(
        f"WHEN '{name}' THEN INSERT INTO public.messages VALUES {values}; "
        for name, values in OTHER_CONSTRAINTS.items()
    )
    connection.execute(
        "CREATE TABLE public.messages ("
        "global_position bigint CONSTRAINT messages_pkey PRIMARY KEY, "
        "id int CONSTRAINT messages_id UNIQUE, stream int CONSTRAINT messages_stream UNIQUE, "
        "n int CONSTRAINT expected_version CHECK (n > 0), "
        "m int CONSTRAINT message_id UNIQUE);"
        "INSERT INTO public.messages VALUES (1, 1, 1, 1, 1);"
        "CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"CASE NEW.data->>'payId' {fill} ELSE NULL; END CASE; RETURN NULL; END $$;"
        "CREATE TRIGGER fill AFTER INSERT ON message_store.messages FOR EACH ROW "
        "WHEN (NEW.type = 'Paid') EXECUTE FUNCTION fill()"
    )
    till = Till(connection)
    till.send("0a", *OTHER_CONSTRAINTS, "6a")
    assert till.drain() == {"handled": 2, "dead": 5}
    assert [row["name"] for row in letters(connection)] == list(OTHER_CONSTRAINTS)
    assert reasons(connection) == [("dead", "write", 1)] * 5


def test_an_error_that_a_handler_raises_is_the_handlers(connection):
    """Even if it comes from the database, such as a missing right."""
    till = Till(connection, error=psycopg.errors.InsufficientPrivilege)
    till.failing = {"1a"}
    till.send("1a")
    till.drain()
    assert reasons(connection) == [("dead", "handler", 1)]
