"""How long the pages of the console take on a large store."""

import os
import re
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookiejar import CookieJar
from urllib.parse import quote

from benchmarks.harness import Bench, Result, benchmark
from benchmarks.ledger import Ledger
from benchmarks.running import EXAMPLES, ROOT
from reservation.postgres.connection import connect

MESSAGES, LETTERS, ROUNDS = 1_000_000, 10_000, 7
MOST = 300.0  # milliseconds

# One of ten is dead, and the others are parked behind it.
MORE_LETTERS = """
INSERT INTO reservation.dead_letters (
  consumer, category, global_position, message_id, stream_name, type, entity, state, reason, error,
  process)
SELECT 'account', 'accountTransaction', m.global_position, m.id, m.stream_name, m.type,
       'account-' || n / 10, CASE WHEN mod(n, 10) = 0 THEN 'dead' ELSE 'parked' END,
       CASE WHEN mod(n, 10) = 0 THEN 'handler' ELSE 'parked' END,
       'raised HTTPError in pay (bank.py:7)', 'host:1'
FROM generate_series(1, %(letters)s) AS n
JOIN message_store.messages m ON m.global_position = %(base)s::bigint + (n + 1000) * 8 + 1
ON CONFLICT DO NOTHING
"""


@benchmark
def console(bench: Bench) -> Iterator[Result]:
    """Ask for each page of the console several times; 1,000,000 messages, 10,000 dead letters."""
    ledger = Ledger.of_messages(MESSAGES)
    with bench.database() as url, connect(url, autocommit=True) as connection:
        ledger.fill(connection)
        last = 2 * ledger.accounts + 2
        connection.execute(MORE_LETTERS, {"letters": LETTERS, "base": last})
        connection.execute("VACUUM ANALYZE message_store.messages, reservation.dead_letters")
        ((stored,),) = connection.execute("SELECT count(*) FROM message_store.messages")
        assert 0.98 * MESSAGES < stored < 1.02 * MESSAGES, stored
        ((id_,),) = connection.execute(
            "SELECT id::text FROM message_store.messages WHERE global_position = %s", [last + 8_001]
        )
        account = 5_000 % ledger.accounts
        pages = {
            "overview": "/",
            "consumers": "/consumers",
            "letters": "/dead-letters",
            "letters_by_text": "/dead-letters?text=HTTPError",
            "letters_of_entity": "/dead-letters?entity=account-7",
            "story_of_id": _story(id_),
            "story_of_position": _story(str(last + 8_001)),
            "story_of_stream": _story(f"account-{account}"),
            "story_of_entity_and_key": _story(f"{account}+d5000"),
            "story_of_key": _story("d5000"),
            "story_of_unknown": _story("nothing-has-this-name"),
        }
        with _serving(url) as (opener, address):
            for name, page in pages.items():
                times = [_milliseconds(opener, address + page) for _ in range(ROUNDS)]
                median = round(statistics.median(times), 1)
                against = f"{MOST:.0f} ms; the slowest of {ROUNDS} took {max(times):.0f} ms"
                ratio = round(median / MOST, 2)
                yield Result(f"console_{name}", median, "ms", against, ratio, 1.0, median <= MOST)


def _story(text: str) -> str:
    return f"/story?q={quote(text)}"


def _milliseconds(opener: urllib.request.OpenerDirector, address: str) -> float:
    start = time.perf_counter()
    with opener.open(address) as answer:
        content = answer.read()
    took = 1000 * (time.perf_counter() - start)
    assert b"Sign out" in content, content[:500]
    return took


@contextmanager
def _serving(url: str) -> Iterator[tuple[urllib.request.OpenerDirector, str]]:
    """Run a console as a process; give what asks it, signed in, and its address."""
    command = [sys.executable, "-P", "-m", "cli", "console", "bank:account", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--app-dir", EXAMPLES],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "RESERVATION_DATABASE_URL": url},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        found = None
        for line in process.stderr:
            if found := re.search(r"http://\S+", line):
                break
        assert found is not None
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        opener.open(found[0]).close()
        yield opener, re.sub(r"(:\d+)/.*", r"\1", found[0])
    finally:
        process.terminate()
        process.wait()
