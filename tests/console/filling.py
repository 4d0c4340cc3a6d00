"""A store in which everything has happened that the console shows, made by real consumers."""

from typing import Any, NamedTuple

from psycopg import Connection, sql
from psycopg.rows import namedtuple_row

import consumers
from reservation import MessageStore
from tests.console.trade import Capture, Place, orders, payments

# A text that would run as a script, hide a part of itself or break a page if it were not escaped.
HOSTILE = "<script>alert(1)</script>\u202eevil\u200b&amp;'\"{{ 7 * 7 }}"


def fill(connection: Connection, database_url: str) -> None:
    """Send commands of all fates, and run both components until nothing is left to do."""
    store = MessageStore(connection)
    for number in range(1, 6):
        place(store, f"o-{number}", f"anna-{number}", 1000 * number)
    place(store, "o-declined", "declined", 300)
    for number in range(1, 4):  # the first dies, the others are parked behind it
        place(store, f"o-broken-{number}", "broken", 100 * number)
    place(store, "o-waiting", "waiting", 400)
    place(store, "o-hostile", HOSTILE.replace("-", ""), 500)
    run(database_url)
    # Reissues: one is a duplicate, one means something else under the same key.
    store.write(Capture("o-1/1", "o-1", "anna-1", 1000, "sent again"), "payment:command-anna-1")
    store.write(Capture("o-2/1", "o-2", "anna-2", 1, "other"), "payment:command-anna-2")
    place(store, "o-1", "anna-1", 1000)
    run(database_url)
    # What nobody has handled yet.
    for number in range(6, 9):
        place(store, f"o-{number}", f"anna-{number}", 10)


def letters(connection: Connection, **wanted: Any) -> list[NamedTuple]:
    """Return the dead letters that have these values, the first of the log first."""
    conditions = [sql.SQL("{} = {}").format(sql.Identifier(n), v) for n, v in wanted.items()]
    query = sql.SQL("SELECT * FROM reservation.dead_letters WHERE {} ORDER BY global_position")
    with connection.cursor(row_factory=namedtuple_row) as cursor:
        chosen = sql.SQL(" AND ").join(conditions or [sql.SQL("true")])
        return cursor.execute(query.format(chosen)).fetchall()


def place(store: MessageStore, order: str, customer: str, cents: int) -> None:
    """Order something."""
    store.write(Place(order, customer, cents), f"order:command-{order}")


def run(database_url: str) -> None:
    """Run both components until neither has anything left."""
    for component in (orders, payments, orders):
        consumers.drain(component, database_url)
