"""What a handler raises, and how it leaves the transaction of its batch."""

import signal

import psycopg
import pytest

from consumers.handling.handler_call import call, guarded, is_interrupt
from reservation.errors import (
    DatabaseUnavailableError,
    DecodeError,
    HandlerError,
    SerializationError,
)
from reservation.postgres.connection import connect
from tests.controls import COMMANDS, deposit, stored

MESSAGE = stored(deposit())


def called(connection, handler):
    """Call a handler in the transaction of a batch, which is rolled back."""
    with connection.transaction(force_rollback=True):
        return call(connection, MESSAGE, handler)


def raising(error):
    def handler():
        raise error

    return handler


def test_what_it_returns_is_returned(connection):
    """Where it left the transaction as it found it."""
    assert called(connection, lambda: ["event"]) == ["event"]


def test_what_it_raises_is_its_own_fault(connection):
    """With the message and the kind of error, never the text, which may repeat the message."""
    with pytest.raises(
        HandlerError, match=r"The handler of Deposit .* raised ValueError"
    ) as caught:
        called(connection, raising(ValueError("secret")))
    assert "secret" not in str(caught.value)
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), KeyboardInterrupt()])
def test_what_is_no_exception_is_its_fault_too(connection, error):
    """Under the consumers' own handler of SIGINT, an interrupt is one that the handler raised."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(HandlerError):
            called(connection, raising(error))
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupt_of_python_is_passed_on(connection):
    """Whoever pressed the keys wants to end the process."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert is_interrupt(KeyboardInterrupt())
        assert not is_interrupt(ValueError())
        with pytest.raises(KeyboardInterrupt):
            called(connection, raising(KeyboardInterrupt()))
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_error_of_a_message_stays_as_it_is(connection):
    """It says already whose fault it is."""
    error = DecodeError("no")
    with pytest.raises(DecodeError) as caught:
        called(connection, raising(error))
    assert caught.value is error


def execute(connection, *statements, then=list):
    def handler():
        for statement in statements:
            connection.execute(statement)
        return then()

    return handler


def test_a_statement_that_failed_must_not_be_passed_over(connection):
    """The transaction cannot be committed after it."""

    def handler():
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("SELECT 1/0")
        return []

    with pytest.raises(HandlerError, match="went on after a statement that failed"):
        called(connection, handler)


def test_a_statement_that_failed_in_a_savepoint_is_passed_over(connection):
    """The transaction is sound."""

    def handler():
        with pytest.raises(psycopg.errors.DivisionByZero), connection.transaction():
            connection.execute("SELECT 1/0")
        return ["event"]

    assert called(connection, handler) == ["event"]


def test_the_transaction_must_not_be_ended(connection):
    """It holds the rest of the batch."""
    with pytest.raises(HandlerError, match="ended the transaction of its batch"):
        call(connection, MESSAGE, list)
    connection.execute("BEGIN")
    with pytest.raises(HandlerError, match="ended the transaction of its batch"):
        call(connection, MESSAGE, execute(connection, "COMMIT"))


def test_the_connection_must_not_be_closed(connection, database_url):
    """It is the consumer's."""
    with connect(database_url) as own:
        own.execute("SELECT 1")
        with pytest.raises(HandlerError, match="closed the connection of its batch"):
            call(own, MESSAGE, lambda: own.close() or [])


@pytest.mark.parametrize("notices", [True, False])
def test_a_connection_that_was_lost_is_no_fault_of_the_message(connection, database_url, notices):
    """Nothing could be committed, whether the handler raised because of it or not."""
    with connect(database_url) as own:

        def handler():
            connection.execute("SELECT pg_terminate_backend(%s, 10000)", [own.info.backend_pid])
            try:
                own.execute("SELECT 1")
            except psycopg.OperationalError:
                if notices:
                    raise
            return []

        own.execute("SELECT 1")
        with pytest.raises(DatabaseUnavailableError, match="was lost while Deposit"):
            call(own, MESSAGE, handler)


def test_a_lost_race_is_run_again(connection):
    """Where it left the transaction failed; with the race as the cause, however deep."""

    def handler():
        try:
            connection.execute("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$")
        except psycopg.Error as error:
            raise ValueError("wrapped") from error

    with pytest.raises(SerializationError, match="lost against another transaction"):
        called(connection, handler)


def test_a_race_that_was_rolled_back_is_a_fault_of_the_message(connection):
    """The exception may be of any connection."""

    def handler():
        with connection.transaction():
            connection.execute("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$")

    with pytest.raises(HandlerError, match="raised SerializationFailure"):
        called(connection, handler)


def test_a_connection_may_have_the_descriptor_of_one_that_was_closed(database_url, store):
    """What a handler raises is its message's fault, and does not end the process."""
    store.write(deposit(), COMMANDS)
    (message,) = store.read_stream(COMMANDS)
    with connect(database_url) as first, guarded(first, [message]):
        first.execute("SELECT 1")
        number = first.pgconn.socket

    def handler():
        raise ValueError

    with connect(database_url) as second:
        second.execute("SELECT 1")
        assert second.pgconn.socket == number
        with pytest.raises(HandlerError):
            call(second, message, handler)
