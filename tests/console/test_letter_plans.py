"""How much of 10,000 dead letters each page reads, counted by the server, and what it answers."""

from collections.abc import Iterator

import pytest
from psycopg import Connection

from consumers.dead_letters import search
from consumers.dead_letters.search import Filter, LetterKey
from tests.large_log import run

LETTERS = 10_000

# Every tenth is dead, and the nine after it are parked behind it.
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


@pytest.fixture(params=[False, True], ids=["never analyzed", "analyzed"])
def many(request, connection) -> Iterator[Connection]:
    """Give a store with many letters, in a session that is as fresh as a page's."""
    connection.execute("ALTER TABLE reservation.dead_letters SET (autovacuum_enabled = off)")
    connection.execute(FILL, [LETTERS])
    if request.param:
        connection.execute("ANALYZE reservation.dead_letters")
    return connection


def read(many, wanted, **page):
    """Return what one page of a search reads."""
    return run(many, lambda connection: search.page(connection, wanted, 51, **page))


MIDDLE = LetterKey(5_000, "account", "accountTransaction")


@pytest.mark.parametrize(
    "page",
    [{}, {"key": MIDDLE}, {"key": MIDDLE, "backward": True}],
    ids=["first", "next", "before"],
)
def test_a_page_reads_its_letters_and_the_first_of_their_lines(many, page):
    """However many there are before it and behind it."""
    counted = read(many, Filter(), **page)
    assert len(counted.result) == 51
    assert counted.scanned == 0
    assert counted.fetched <= 51 * 3


@pytest.mark.parametrize(
    "wanted",
    [
        Filter(
            "account", "accountTransaction", entity="account-7", states=("dead", "parked", "retry")
        ),
        Filter(stream="accountTransaction-7+77"),
    ],
    ids=["line", "stream"],
)
def test_one_line_and_one_stream_are_found_by_an_index(many, wanted):
    """As the page of a letter shows them."""
    many.execute("SET enable_seqscan = off")
    counted = read(many, wanted)
    assert 1 <= len(counted.result) <= 10
    assert counted.fetched <= LETTERS / 10


def test_pages_show_each_letter_once(many):
    """Forward and backward again."""
    seen, key = [], None
    while rows := search.page(many, Filter(states=("dead",)), 64, key=key):
        seen += rows
        key = LetterKey.of(rows[-1])
    assert [one.global_position for one in seen] == list(range(LETTERS, 0, -10))
    back = search.page(
        many, Filter(states=("dead",)), 64, key=LetterKey.of(seen[64]), backward=True
    )
    assert back[::-1] == seen[:64]


def test_the_first_of_each_line_is_named(many):
    """Of each parked letter, without reading its line."""
    counted = read(many, Filter(states=("parked",)))
    assert all(one.behind == one.global_position // 10 * 10 for one in counted.result)
