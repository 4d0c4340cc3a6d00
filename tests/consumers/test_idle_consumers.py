"""What a message costs consumers that wait for it: round trips, counted, so that they do not grow.

All that a consumer does from the notice to the commit is in the way of the message. The command
consumer begins and reads; moves its position, reserves and commits. The reservation consumer begins
and reads; loads the entity; moves its position, writes and commits. After the commit each waits
again without asking the server anything.
"""

import threading
from collections import Counter

import psycopg
import pytest

from bank import account
from tests.apps.bank import READS, RESERVED, event_types
from tests.support.commands import invoke_cli
from tests.support.consuming import hosted, logged, until
from tests.support.controls import COMMANDS, deposit, open_

MOST = {"account:command": 1, RESERVED: 2}
MESSAGES = 30
# In the test's time both take turns, renew leases and look for messages.
BESIDES = 20


@pytest.fixture
def exchanges(database_url, store, monkeypatch):
    """Give how often each consumer has waited for the server since both were at rest."""
    counts = Counter()
    wait = psycopg.Connection.wait

    def counted(connection, *arguments, **options):
        counts[threading.current_thread().name.removeprefix("reservation ")] += 1
        return wait(connection, *arguments, **options)

    invoke_cli("store", "notices", "on", "--database-url", database_url)
    with logged() as log, hosted(account, database_url):
        until(lambda: len(log.named("notice_awaited")) == len(READS))
        store.write([open_(), deposit("first")], COMMANDS)
        until(lambda: event_types(store) == ["Opened", "Deposited"])
        monkeypatch.setattr(psycopg.Connection, "wait", counted)
        yield counts


@pytest.mark.parametrize("at_once", [1, 20])
def test_messages_for_idle_consumers_take_few_round_trips(exchanges, store, at_once):
    """Messages of one category and entity that are committed together take as many as one."""
    for n in range(MESSAGES):
        store.write([deposit(f"d{n}-{m}") for m in range(at_once)], COMMANDS)
        until(lambda n=n: store.stream_version("account-123") == 1 + (n + 1) * at_once)
    for category, most in MOST.items():
        assert MESSAGES * most <= exchanges[category] <= MESSAGES * most + BESIDES
