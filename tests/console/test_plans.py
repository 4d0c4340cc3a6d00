"""How much of a large store the pages touch, counted by the server."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from psycopg import Connection, Cursor, IsolationLevel, conninfo, sql

from cli.console.reading import flow
from cli.console.reading.consumers import MOST_COUNTED, read_consumers
from cli.console.reading.flow import read_overview
from reservation.postgres.connection import connect
from tests.console.large import fill_large

pytestmark = pytest.mark.slow

MESSAGES = 30_000
LETTERS = 2_000
PAGES = {
    "overview": lambda connection: read_overview(connection, {}),
    "consumers": read_consumers,
}

# Four categories that are read, and five whose traffic is looked at. What is unread is counted up
# to a limit, and its neighbours in partitions are passed.
READ = 4
SEEN = 5


@pytest.fixture(scope="module", params=["never analyzed", "analyzed"])
def large(request, admin, server_url, template) -> Iterator[Connection[Any]]:
    """Give a session on a large store, of which everything or nothing is known to the planner."""
    name = f"console_large_{os.getpid()}"
    admin.execute(
        sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
            sql.Identifier(name), sql.Identifier(template)
        )
    )
    try:
        url = conninfo.make_conninfo(server_url, dbname=name)
        with connect(url, autocommit=True) as connection:
            for table in ("message_store.messages", "reservation.dead_letters"):
                connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
            fill_large(connection, MESSAGES, MESSAGES - 4_000, LETTERS)
            if request.param == "analyzed":
                connection.execute("ANALYZE")
            connection.isolation_level = IsolationLevel.REPEATABLE_READ  # as the console has it
            yield connection
    finally:
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_touches_what_it_shows(large, page):
    """No page scans the log, and what it fetches does not grow with it."""
    with large.transaction():
        before = touched(large)
        PAGES[page](large)
        scanned, fetched = (now - then for now, then in zip(touched(large), before, strict=True))
    assert scanned == 0
    unread = READ * 1_000
    looked_at = SEEN * (flow._MOST + flow._LOOKED_AT) if page == "overview" else 0
    assert unread < fetched <= looked_at + 2 * unread < MESSAGES / 2


@pytest.mark.parametrize("page", PAGES)
def test_a_page_makes_few_statements(large, page, monkeypatch):
    """Some for the page and some for each category, whatever they hold."""
    made = []
    execute = Cursor.execute
    monkeypatch.setattr(
        Cursor, "execute", lambda *args, **more: made.append(args) or execute(*args, **more)
    )
    PAGES[page](large)
    assert len(made) <= 8 + 5 * READ


def test_what_is_unread_is_counted_to_a_limit(large):
    """A consumer that is far behind costs no more."""
    with large.transaction(force_rollback=True):
        large.execute("UPDATE reservation.positions SET position = 0, message_id = NULL")
        before = touched(large)
        found = read_consumers(large)
        scanned, fetched = (now - then for now, then in zip(touched(large), before, strict=True))
        assert scanned == 0
        assert fetched <= READ * (MOST_COUNTED + 100)
        assert all(one.lag.at_least for group in found.groups for one in group.partitions)


def touched(connection: Connection[Any]) -> tuple[int, int]:
    """Return the messages that this session scanned, and got through an index."""
    ((scanned, fetched),) = connection.execute(
        "SELECT seq_tup_read::int, idx_tup_fetch::int FROM pg_stat_xact_user_tables "
        "WHERE relid = 'message_store.messages'::regclass"
    ).fetchall()
    return scanned, fetched
