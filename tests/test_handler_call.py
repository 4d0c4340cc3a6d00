"""What a handler raises, and how it leaves the transaction of its batch."""

import signal

import psycopg
import pytest

from consumers.calls.handler_call import call, guarded
from reservation.effects.faults import is_interrupt
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
    """The result of a handler is returned if the transaction is as it was."""
    assert called(connection, lambda: ["event"]) == ["event"]


def test_what_it_raises_is_its_own_fault(connection):
    """The failure names the message and the kind of error, never the error's text."""
    with pytest.raises(
        HandlerError, match=r"The handler of Deposit .* raised ValueError"
    ) as caught:
        called(connection, raising(ValueError("secret")))
    assert "secret" not in str(caught.value)
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), KeyboardInterrupt()])
def test_what_is_no_exception_is_its_fault_too(connection, error):
    """Under our SIGINT handler, a KeyboardInterrupt comes from the handler and is its failure."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(HandlerError):
            called(connection, raising(error))
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupt_of_python_is_passed_on(connection):
    """Without our SIGINT handler, a KeyboardInterrupt ends the process."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert is_interrupt(KeyboardInterrupt())
        assert not is_interrupt(ValueError())
        with pytest.raises(KeyboardInterrupt):
            called(connection, raising(KeyboardInterrupt()))
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_error_of_a_message_stays_as_it_is(connection):
    """An error that already names its message is raised unchanged."""
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


def test_a_handler_must_not_swallow_a_failed_statement(connection):
    """A handler that swallows a failed statement fails: the transaction cannot be committed."""

    def handler():
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("SELECT 1/0")
        return []

    with pytest.raises(HandlerError, match="went on after a statement that failed"):
        called(connection, handler)


def test_a_handler_may_swallow_a_statement_that_failed_in_a_savepoint(connection):
    """A statement that failed in a savepoint is no failure of the handler."""

    def handler():
        with pytest.raises(psycopg.errors.DivisionByZero), connection.transaction():
            connection.execute("SELECT 1/0")
        return ["event"]

    assert called(connection, handler) == ["event"]


def test_the_transaction_must_not_be_ended(connection):
    """A handler must not end the transaction, which holds the rest of the batch."""
    with pytest.raises(HandlerError, match="ended the transaction of its batch"):
        call(connection, MESSAGE, list)
    connection.execute("BEGIN")
    with pytest.raises(HandlerError, match="ended the transaction of its batch"):
        call(connection, MESSAGE, execute(connection, "COMMIT"))


def test_the_connection_must_not_be_closed(connection, database_url):
    """A handler must not close the connection, which is the consumer's."""
    with connect(database_url) as own:
        own.execute("SELECT 1")
        with pytest.raises(HandlerError, match="closed the connection of its batch"):
            call(own, MESSAGE, lambda: own.close() or [])


@pytest.mark.parametrize("notices", [True, False])
def test_a_connection_that_was_lost_is_no_fault_of_the_message(connection, database_url, notices):
    """A lost connection is no failure of the message, whatever the handler raises."""
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
    """A lost race makes the batch run again, even as the cause of another exception."""

    def handler():
        try:
            connection.execute("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$")
        except psycopg.Error as error:
            raise ValueError("wrapped") from error

    with pytest.raises(SerializationError, match="lost against another transaction"):
        called(connection, handler)


def test_a_race_that_was_rolled_back_is_a_fault_of_the_message(connection):
    """A race that was rolled back is a failure, as it may be of another connection."""

    def handler():
        with connection.transaction():
            connection.execute("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$")

    with pytest.raises(HandlerError, match="raised SerializationFailure"):
        called(connection, handler)


def test_a_connection_may_have_the_descriptor_of_one_that_was_closed(database_url, store):
    """A failing handler does not end the process where a closed descriptor is in use again."""
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
