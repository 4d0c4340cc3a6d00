"""Time that passes for scheduled messages, in a database for tests."""

from datetime import timedelta

from reservation.errors import RefusedError
from reservation.postgres.connection import connect
from reservation.serialization.durations import time_span
from reservation.store.writing.scheduling import bring_forward, write_due


def pass_time(database_url: str, span: timedelta | str) -> int:
    """Let time pass for scheduled messages, and write those that are due then.

    Each becomes due earlier by the span; clocks and other times stay as they are. Handle what was
    written with `consumers.drain`.

    Args:
        database_url: a libpq URL or connection string, of a database for tests.
        span: how much time is to pass: a `timedelta`, or a text such as ``"30m"``.

    Returns:
        How many messages were written by this call. A consumer that runs meanwhile may have
        written others.

    Raises:
        ValueError: the span is none, or is negative.
        StoreError: the database is away, or refuses a message that is due.
    """
    passed, count, refused = time_span(span), 0, 0
    with connect(database_url, autocommit=True) as connection:
        bring_forward(connection, passed)
        done = None
        while done is None or done.written:
            done = write_due(connection)
            count += done.written
            refused += done.refused
    if refused:
        raise RefusedError(
            f"The log refuses {refused} messages that are due; `reservation scheduled list` "
            f"shows why"
        )
    return count
