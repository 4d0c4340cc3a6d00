"""A process in which another connection was guarded before."""

import pytest

from consumers.handling.handler_call import call, guarded
from reservation.errors import HandlerError
from reservation.postgres.connection import connect
from tests.controls import COMMANDS, deposit


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
