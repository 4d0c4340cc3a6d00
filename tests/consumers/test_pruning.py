"""What an archive and a lock decide when a store is pruned; the archive is made up here.

Real archives are Spark's, and what the command makes of one is tested with them.
"""

import hashlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from psycopg import connect

from bank import account
from bank.messages import Deposit
from reservation import Component
from reservation.maintenance import pruning
from reservation.maintenance.pruning import (
    ArchivePortion,
    prune_archived,
    prune_processed,
    prune_reservations,
)
from tests.apps.bank import RESERVED, drain
from tests.consumers.test_prune import (
    add_letters,
    age,
    handle,
    move,
    processed,
    reserved,
)
from tests.support.commands import invoke_cli
from tests.support.consuming import hosted, until
from tests.support.controls import COMMANDS, deposit
from tests.support.stored_positions import store_position

__all__ = ["processed"]  # a fixture

SENT_TO = "account:command"


class Everything:
    """An archive that has all messages of a store up to a global position, but some."""

    def __init__(self, connection, up_to, but=()):
        self._connection = connection
        self._up_to = up_to
        self._but = list(but)
        self._read = {}

    def _rows(self, category):
        if category not in self._read:  # it stays as it is, whatever becomes of the store
            self._read[category] = self._stored(category)
        return self._read[category]

    def _stored(self, category):
        return self._connection.execute(
            "SELECT global_position, id, stream_name, position, type, "
            "(extract(epoch FROM time) * 1000000)::bigint, data::text, metadata::text "
            "FROM message_store.messages WHERE message_store.category(stream_name) = %s "
            "AND global_position <= %s AND NOT global_position = ANY(%s) ORDER BY global_position",
            [category, self._up_to, self._but],
        ).fetchall()

    def require_store(self, store):
        pass

    def head(self, category):
        return (self._rows(category) or [(0, None)])[-1][:2]

    def portions(self, category, number):
        rows = self._rows(category)
        for n in range(0, len(rows), number):
            positions, *columns = zip(*rows[n : n + number], strict=True)
            messages = zip(*columns, strict=True)
            yield ArchivePortion(list(positions), [self._digest(message) for message in messages])

    def _digest(self, message):
        texts = ["-" if field is None else f"{len(str(field))}:{field}" for field in message]
        return hashlib.sha256("".join(texts).encode()).hexdigest()


def prune_everything(connection, up_to, *, but=(), older_than=None, limit=100, apply=True):
    """Prune with such an archive; return the number of removed messages by category."""
    steps = prune_archived(account, Everything(connection, up_to, but), older_than)
    totals = Counter()
    for step in steps(connection, apply, limit):
        totals[step.of] += step.count
    return totals


def positions(connection, category):
    """Return the global positions that a category still has."""
    rows = connection.execute(
        "SELECT global_position FROM message_store.messages "
        "WHERE message_store.category(stream_name) = %s ORDER BY 1",
        [category],
    )
    return [row[0] for row in rows]


# What is changed of a message, beside its global position, which is how it is found.
CHANGES = [
    "stream_name = stream_name || '9'",
    "position = position + 77",
    "type = 'Withdraw'",
    """data = jsonb_set(data, '{amount}', '"99"')""",
    "data = NULL",
    """metadata = '{"properties": {}}'""",
    "id = gen_random_uuid()",
    "time = time + interval '1 microsecond'",
    "time = 'infinity'",
]


def test_messages_that_differ_from_the_archive_are_kept_and_named(connection, store):
    """The others are removed."""
    handle(connection, store, "abcd")
    archive = Everything(connection, 4)
    archive.head(SENT_TO)
    stays = "SELECT count(*) FROM message_store.messages WHERE global_position IN (2, 4)"
    found = {}
    for n, change in enumerate(CHANGES):
        with connection.transaction(force_rollback=True):
            connection.execute(
                f"UPDATE message_store.messages SET {change} WHERE global_position IN (2, 4)"
            )
            steps = list(prune_archived(account, archive)(connection, True, [1, 100][n % 2]))
            differing = [position for step in steps for position in step.differing]
            (left,) = connection.execute(stays).fetchone()
            found[change] = differing, sum(step.count for step in steps), left
    assert found == {change: ([2, 4], 2, 2) for change in CHANGES}


def test_a_message_that_another_transaction_changes_is_kept(connection, store, database_url):
    """It is compared again when it is deleted."""
    handle(connection, store, "abcd")
    archive = Everything(connection, 4)
    archive.head(SENT_TO)
    with connect(database_url) as other, ThreadPoolExecutor() as executor:
        other.execute("UPDATE message_store.messages SET data = '{}' WHERE global_position = 2")
        steps = executor.submit(lambda: [*prune_archived(account, archive)(connection, True, 100)])
        waiting = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
        until(lambda: other.execute(waiting, [connection.info.backend_pid]).fetchall())
        other.commit()
        assert [step.count for step in steps.result()] == [2]
    assert positions(connection, SENT_TO)[0] == 2


def test_a_reservation_that_differs_from_the_archive_is_kept_and_named(connection, store):
    """As commands are."""
    handle(connection, store, "ab")
    (first, *_) = positions(connection, RESERVED)
    archive = Everything(connection, 100)
    archive.head(RESERVED)
    connection.execute(
        "UPDATE message_store.messages SET data = '{}' WHERE global_position = %s", [first]
    )
    steps = list(prune_archived(account, archive, timedelta(0))(connection, True, 100))
    assert [step.differing for step in steps if step.of == RESERVED] == [(first,)]
    assert first in positions(connection, RESERVED)


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_archived_commands_are_removed_but_the_last_of_each_stream(connection, store, limit):
    """It has the stream's position."""
    store.write([deposit("d"), deposit("e")], "account:command-456")
    handle(connection, store, "abc")
    before = positions(connection, RESERVED)
    assert prune_everything(connection, 6, apply=False) == {SENT_TO: 4}
    assert prune_everything(connection, 6, limit=limit) == {SENT_TO: 4}
    assert positions(connection, SENT_TO) == [2, 6]
    assert positions(connection, RESERVED) == before
    assert prune_everything(connection, 6) == {}
    assert store.write(deposit("f"), COMMANDS) == 4
    store.write([deposit("a"), deposit("d")], COMMANDS)
    assert drain(connection).counts["duplicate"] == 2


def test_archived_commands_that_are_still_needed_are_kept(connection, store):
    """Those that are not archived, unread by any consumer, or dead letters."""
    store.write([deposit(key) for key in "abcdefgh"], COMMANDS)
    drain(connection)
    move(connection, 6, SENT_TO)
    store.write(deposit("second"), "other-1")
    connection.execute(
        "UPDATE message_store.messages SET stream_name = 'account:command-9', position = 9 "
        "WHERE stream_name = 'other-1'"
    )
    add_letters(connection, "parked", COMMANDS, category="x")
    connection.execute(
        "UPDATE reservation.dead_letters SET category = %s WHERE global_position = 2", [SENT_TO]
    )
    store_position(connection, "another", SENT_TO, 5)
    assert prune_everything(connection, 4, but=[1]) == {SENT_TO: 1}
    assert positions(connection, SENT_TO)[:7] == [1, 2, 4, 5, 6, 7, 8]
    assert prune_everything(connection, 8) == {SENT_TO: 2}
    assert positions(connection, SENT_TO)[:5] == [2, 5, 6, 7, 8]  # another is at 5
    connection.execute("DELETE FROM reservation.leases")
    assert prune_everything(connection, 8) == {}


def test_messages_that_were_handled_with_other_data_are_kept(connection, store, database_url):
    """What they say is in the log alone, and reissues of it are duplicates."""
    handle(connection, store, "abcd")
    copies = positions(connection, RESERVED)
    add_letters(connection, "handled", COMMANDS, category=SENT_TO)
    add_letters(connection, "handled", f"{RESERVED}-%")
    connection.execute(
        "UPDATE reservation.dead_letters SET data = '{}' WHERE global_position = ANY(%s)",
        [[3, copies[1]]],
    )
    prune_everything(connection, 5)
    assert positions(connection, SENT_TO) == [3, 5]
    age(connection, f"{RESERVED}-%", 100)
    old = ["bank:account", "--reservations-older-than", "90d", "--apply"]
    invoke_cli("prune", *old, env={"RESERVATION_DATABASE_URL": database_url})
    assert positions(connection, RESERVED) == [copies[1], copies[3]]


@pytest.mark.parametrize("limit", [1, 100])
def test_archived_reservations_are_removed_as_streams_and_only_on_request(connection, store, limit):
    """One that is young, is a dead letter or has more than is archived is kept."""
    store.write([deposit(key) for key in "abcde"], COMMANDS)
    drain(connection)
    last = positions(connection, RESERVED)[-1]
    store.write(deposit("b"), f"{RESERVED}-123+b")
    age(connection, "%", 100)
    age(connection, "%+d", 80)
    add_letters(connection, "dead", "%+c")
    assert prune_everything(connection, last) == {SENT_TO: 4}
    for days, left in ((90, ["b", "c", "d", "e", "b"]), (1, ["b", "c", "e", "b"])):
        older_than = timedelta(days=days)
        gone = prune_everything(connection, last, older_than=older_than, limit=limit)
        assert gone == {RESERVED: 1}
        assert reserved(store) == left


# The command


@pytest.fixture
def cli(connection, store, database_url, monkeypatch):
    """Give the command on a store of which all is archived and handled."""
    handle(connection, store, "ab")
    archive = Everything(connection, 100)
    monkeypatch.setattr("cli.store.prune._archive", lambda folder, component: archive)

    def prune(*arguments):
        return invoke_cli(
            *("prune", "bank:account", "--archived", ".", *arguments),
            env={"RESERVATION_DATABASE_URL": database_url, "COLUMNS": "200"},
        )

    return prune


def test_archived_messages_are_removed_only_once_their_readers_are_confirmed(connection, cli):
    """A subscriber that has never started is not known, so the command asks before it removes."""
    found = cli()
    assert found.returncode == 0
    assert "2 messages would be removed" in found.stdout
    assert f"{SENT_TO} is read by account\n" in found.stderr
    assert "has never started" in found.stderr
    assert RESERVED not in found.stderr
    refused = cli("--apply")
    assert (refused.returncode, refused.stdout) == (2, "")
    (line,) = refused.stderr.splitlines()
    assert f"{SENT_TO} is read by account; " in line
    assert "has never started" in line
    assert line.endswith("give --yes to confirm")
    assert len(positions(connection, SENT_TO)) == 3
    refused = cli("--reservations-older-than", "90d", "--apply", "--json")
    assert (refused.returncode, f"{RESERVED} is read by account" in refused.stderr) == (2, True)
    removed = cli("--apply", "--yes")
    assert (removed.returncode, "2 messages removed" in removed.stdout) == (0, True)
    assert len(positions(connection, SENT_TO)) == 1


def test_a_declared_subscriber_without_a_position_is_named(connection, database_url, cli):
    """A process that reads another category only may have declared the subscription."""
    audit = Component("audit", id="account_id")
    audit.handle(Deposit, category=SENT_TO)(lambda message, entity, context: None)
    member = "SELECT declaration::text FROM reservation.members WHERE consumer = 'audit'"
    with hosted(audit, database_url) as running:
        ((declaration,),) = until(lambda: connection.execute(member).fetchall(), running)
    for table in ("leases", "moves"):
        connection.execute(f"DELETE FROM reservation.{table} WHERE consumer = 'audit'")
    connection.execute(
        "INSERT INTO reservation.members (consumer, category, process, worker, declaration) "
        "VALUES ('audit', 'payment', 'p', 'w', %s)",
        [declaration],
    )
    named = f"audit subscribes to {SENT_TO} and has no position there"
    assert named in cli().stderr
    drain(connection, audit)
    found = cli()
    assert named not in found.stderr
    assert f"{SENT_TO} is read by account, audit" in found.stderr


# Steps


@pytest.mark.usefixtures("processed")
def test_a_day_in_use_keeps_the_later_ones(connection, database_url, monkeypatch):
    """It is reported once."""
    monkeypatch.setattr(pruning, "_ATTEMPTS", 2)
    with connect(database_url) as busy:
        busy.execute("SELECT FROM reservation.processed_for_a_time")
        (result,) = prune_processed(connection, True, 100)
        assert (result.count, "is in use; run this again" in result.note) == (0, True)
    assert [result.count for result in prune_processed(connection, True, 100)] == [1, 1, 1]


def test_pruning_can_be_interrupted_and_continued(connection, store):
    """Each step is committed by itself."""
    handle(connection, store, "abcdefghi")
    age(connection, f"{RESERVED}-%", 100)
    steps = prune_reservations(account, timedelta(days=90))(connection, True, 2)
    assert [next(steps).count, next(steps).count] == [2, 2]
    steps.close()
    assert len(reserved(store)) == 5
    rest = prune_reservations(account, timedelta(days=90))(connection, True, 2)
    assert sum(step.count for step in rest) == 4
