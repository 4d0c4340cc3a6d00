"""How much of a large store the pages read, counted by the server, and what they answer."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from psycopg import Connection, Cursor, IsolationLevel, connect, conninfo

from cli.console.reading import flow
from cli.console.reading.consumers import MOST_COUNTED, read_consumers
from cli.console.reading.flow import read_overview
from consumers.dead_letters import search
from consumers.dead_letters.letter import OPEN
from consumers.dead_letters.search import Filter, LetterKey
from tests.console.large import fill_large
from tests.support.databases import create, drop
from tests.support.large_log import run

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

# Of a component of its own: every tenth is dead, and the nine after it are parked behind it.
BANK = "account"
BANK_LETTERS = 10_000
FILL = """
INSERT INTO reservation.dead_letters (
  consumer, category, global_position, message_id, stream_name, type, entity, state, reason, error,
  digest, process)
SELECT 'account', 'accountTransaction', n, gen_random_uuid(),
       'accountTransaction-' || n / 10 || '+' || n, 'Withdraw', 'account-' || n / 10,
       CASE WHEN mod(n, 10) = 0 THEN 'dead' ELSE 'parked' END,
       CASE WHEN mod(n, 10) = 0 THEN 'handler' ELSE 'parked' END,
       'raised HTTPError in pay (bank.py:7)', md5(mod(n, 7)::text), 'host:1'
FROM generate_series(1, %s) AS n
"""


@pytest.fixture(scope="module", params=["never analyzed", "analyzed"])
def large(request, admin, server_url, template) -> Iterator[Connection[Any]]:
    """Give a session on a large store, of which everything or nothing is known to the planner."""
    name = f"console_large_{os.getpid()}"
    create(admin, name, template)
    try:
        url = conninfo.make_conninfo(server_url, dbname=name)
        with connect(url, autocommit=True) as connection:
            for table in ("message_store.messages", "reservation.dead_letters"):
                connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
            fill_large(connection, MESSAGES, MESSAGES - 4_000, LETTERS)
            connection.execute(FILL, [BANK_LETTERS])
            if request.param == "analyzed":
                connection.execute("ANALYZE")
            connection.isolation_level = IsolationLevel.REPEATABLE_READ  # as the console has it
            yield connection
    finally:
        drop(admin, name)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_reads_what_it_shows(large, page):
    """No page scans the log, and what it fetches does not grow with it."""
    scanned, fetched = touched(large, PAGES[page])
    assert scanned == 0
    unread = READ * 1_000
    looked_at = SEEN * flow._MOST if page == "overview" else 0
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

    def read(connection):
        connection.execute("UPDATE reservation.moves SET position = 0, message_id = NULL")
        return read_consumers(connection)

    with large.transaction(force_rollback=True):
        scanned, fetched = touched(large, read)
        found = read_consumers(large)
    assert scanned == 0
    assert fetched <= READ * (MOST_COUNTED + 100)
    assert all(one.lag.at_least for group in found.groups for one in group.partitions)


def touched(connection, read) -> tuple[int, int]:
    """Return how many messages a page scanned, and how many it got through an index."""
    query = (
        "SELECT seq_tup_read::int, idx_tup_fetch::int FROM pg_stat_xact_user_tables "
        "WHERE relid = 'message_store.messages'::regclass"
    )
    with connection.transaction():
        before = connection.execute(query).fetchone()
        read(connection)
        after = connection.execute(query).fetchone()
    return after[0] - before[0], after[1] - before[1]


# Dead letters


def searched(large, wanted, *, indexed=False, **page):
    """Return what one page of a search reads."""

    def search_page(connection):
        if indexed:
            connection.execute("SET LOCAL enable_seqscan = off")
        return search.page(connection, wanted, 51, **page)

    return run(large, search_page)


MIDDLE = LetterKey(9_500, BANK, "accountTransaction")


@pytest.mark.parametrize(
    "page",
    [{}, {"key": MIDDLE}, {"key": MIDDLE, "backward": True}],
    ids=["first", "next", "before"],
)
def test_a_page_reads_its_letters_and_the_first_of_their_lines(large, page):
    """However many there are before it and behind it."""
    counted = searched(large, Filter(), **page)
    assert len(counted.result) == 51
    assert counted.scanned == 0
    assert counted.fetched <= 51 * 3


@pytest.mark.parametrize(
    "wanted",
    [
        Filter(BANK, "accountTransaction", entity="account-7", states=OPEN),
        Filter(stream="accountTransaction-7+77"),
    ],
    ids=["line", "stream"],
)
def test_one_line_and_one_stream_are_found_by_an_index(large, wanted):
    """As the page of a letter shows them."""
    counted = searched(large, wanted, indexed=True)
    assert 1 <= len(counted.result) <= 10
    assert counted.fetched <= BANK_LETTERS / 10


def test_pages_show_each_letter_once(large):
    """Forward and backward again."""
    dead, seen, key = Filter(BANK, states=("dead",)), [], None
    while rows := search.page(large, dead, 64, key=key):
        seen += rows
        key = LetterKey.of(rows[-1])
    assert [one.global_position for one in seen] == list(range(BANK_LETTERS, 0, -10))
    back = search.page(large, dead, 64, key=LetterKey.of(seen[64]), backward=True)
    assert back[::-1] == seen[:64]


def test_the_first_of_each_line_is_named(large):
    """Of each parked letter, without reading its line."""
    counted = searched(large, Filter(BANK, states=("parked",)))
    assert all(one.behind == one.global_position // 10 * 10 for one in counted.result)
