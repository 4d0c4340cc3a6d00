"""The errors of the store that a transaction's messages are to blame for."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import Connection

from reservation.errors import MessageError, RefusedError, StoreError
from reservation.messages.message import StoredMessage
from reservation.postgres.error_translation import translated
from reservation.postgres.exchange.request import Answer, Request
from reservation.postgres.exchange.transaction import transaction_of, was_refused
from reservation.postgres.sqlstates import Fault, fault_at_commit


def before(messages: Sequence[StoredMessage], global_position: int | None) -> int | None:
    """Return how many of the messages come before one of them; None if it is not among them."""
    for n, message in enumerate(messages):
        if message.global_position == global_position:
            return n
    return None


@contextmanager
def blamed(messages: Sequence[StoredMessage]) -> Iterator[None]:
    """Raise the store's refusal of a value as an error of the messages that the block is for.

    Which message is at fault shows when they are handled one by one. No other error of the store is
    a fault of the messages.
    """
    try:
        yield
    except RefusedError as error:
        raise MessageError(f"Cannot write the effects of {messages[0]}: {error}") from error


@contextmanager
def transaction(
    connection: Connection[Any],
    messages: Callable[[], Sequence[StoredMessage]],
    requests: Sequence[Request] = (),
) -> Iterator[list[Answer]]:
    """Run a block in a transaction whose commit may be refused because of its messages.

    A deferred constraint of a table that a handler wrote to is checked only at the commit; its
    violation is a fault of the messages too. The text of an error that a trigger raised is left
    out, because it may contain values of the messages.
    """
    over = False
    try:
        with translated(), transaction_of(connection, requests) as answers:
            yield answers
            over = True
    except StoreError as error:
        cause = error.__cause__
        if (
            not (over or was_refused(connection))
            or not messages()
            or not isinstance(cause, psycopg.Error)
            or fault_at_commit(cause) is not Fault.MESSAGE
        ):
            raise
        with blamed(messages()):
            if isinstance(error, RefusedError):
                raise
            raise RefusedError(
                f"The database refused the commit with SQLSTATE {cause.sqlstate}, which a trigger "
                f"or a function of a table raised"
            ) from cause
