"""A sender in its own process: draws revisions and prints them, one a line, until it is ended."""

import os
import sys

import psycopg

from reservation import MessageStore
from reservation.strategies import ClockRevisions, DatabaseRevisions
from tests.apps.once import pay


def draw_from_the_clock(path: str, count: int) -> None:
    """Write what is drawn, each to a line of its own, in one write."""
    revisions = ClockRevisions(path)
    for _ in range(count):
        os.write(1, b"%d\n" % revisions.next())


def send(database_url: str, count: int) -> None:
    """Send that many messages, each with the next revision of its entity, and say when each is."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        store, revisions = MessageStore(connection), DatabaseRevisions(connection)
        for n in range(count):
            entity = str(n % 3)
            with connection.transaction():
                revision = revisions.next(f"till-{entity}")
                store.write(pay("p", revision, till=entity), f"till:command-{entity}")
            os.write(1, b"%d\n" % revision)


if __name__ == "__main__":
    what, where, how_often = sys.argv[1:]
    {"clock": draw_from_the_clock, "database": send}[what](where, int(how_often))
