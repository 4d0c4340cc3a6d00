"""The server is stopped immediately under load, again and again: no answer was in vain.

Eight senders write to one category through connections of their own, write again what they and
others have written, and get in each other's way. A consumer handles what they write. Whatever any
of them was answered must be in the log after each crash, and the cause of whatever the consumer
stored. What was read but not answered may be gone.
"""

import random
import threading
import uuid
from contextlib import closing
from dataclasses import dataclass, field

import psycopg
import pytest

from bank.component import account
from benchmarks.slow_disk import compiler
from consumers import drain
from reservation import MessageStore, Write
from reservation.admin import install
from reservation.errors import (
    DatabaseUnavailableError,
    ExpectedVersionError,
    MessageIdConflictError,
    StoreError,
)
from tests.apps.bank import broken
from tests.apps.bank import drain as drain_all
from tests.soak.slow_server import SlowServer
from tests.support.chance import FIRST
from tests.support.consuming import until
from tests.support.controls import deposit, open_
from tests.support.started import PATIENCE

pytestmark = pytest.mark.skipif(compiler() is None, reason="there is no C compiler")

ACCOUNTS = [str(n) for n in range(20)]
SENDERS = 8
LAST = "SELECT id FROM message_store.messages ORDER BY global_position DESC LIMIT 50"

# Answers since the last crash that do not agree with the log.
CONTRADICTED = """
SELECT a.id::text
FROM unnest(%(ids)s::uuid[], %(positions)s::bigint[]) AS a(id, "position")
LEFT JOIN message_store.messages m ON m.id = a.id
WHERE m.id IS NULL OR m.position <> a.position
UNION ALL
SELECT a.stream_name
FROM unnest(%(streams)s::text[], %(versions)s::bigint[]) AS a(stream_name, version)
WHERE a.version > coalesce((SELECT max(m.position) FROM message_store.messages m
                            WHERE m.stream_name = a.stream_name), -1)
"""
# Effects that follow no message, or another than they say.
WITHOUT_CAUSE = """
SELECT e.id::text
FROM message_store.messages e
LEFT JOIN message_store.messages m
  ON m.global_position = (e.metadata->>'causationMessageGlobalPosition')::bigint
WHERE message_store.category(e.stream_name) IN ('account', 'accountTransaction')
  AND (e.global_position > %(after)s)
  AND ((m.stream_name, m.position) IS DISTINCT FROM
       (e.metadata->>'causationMessageStreamName',
        (e.metadata->>'causationMessagePosition')::bigint)
       OR m.data->>'accountId' <> e.data->>'accountId')
"""


@dataclass
class Answers:
    """What was answered since the last crash, and what was read.

    Attributes:
        positions: of messages, by their ids; None for one that is there.
        versions: that a stream has at least.
        kinds: how often each kind of answer was given.
        seen: the ids of messages that a reader saw.
    """

    positions: dict[uuid.UUID, int | None] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)
    seen: set[uuid.UUID] = field(default_factory=set)


class Load:
    """Senders, a reader and a consumer, each in a thread, which go on after each crash."""

    def __init__(self, address, seed):
        self._address = address
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._sent: list[Write] = []
        self._errors: list[BaseException] = []
        self.answers = Answers()
        self.acknowledged: set[uuid.UUID] = set()
        work = [
            *(self._sender(random.Random(f"{seed} {n}")) for n in range(SENDERS)),
            self._read,
            self._handle,
        ]
        self._threads = [threading.Thread(target=self._repeat, args=[one]) for one in work]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error):
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE)
        assert not any(thread.is_alive() for thread in self._threads)
        assert self._errors == []

    def until_answered(self, count):
        """Wait for so many answers."""
        until(lambda: self._errors or sum(self.answers.kinds.values()) >= count)

    def taken(self):
        """Return what was answered since this was called last."""
        with self._lock:
            answers, self.answers = self.answers, Answers()
        return answers

    def _repeat(self, work):
        while not self._over.is_set():
            try:
                with psycopg.connect(self._address, autocommit=True) as connection:
                    while not self._over.is_set():
                        work(connection)
            except (DatabaseUnavailableError, psycopg.OperationalError):
                self._over.wait(0.02)  # until it is up again
            except BaseException as error:  # of a thread, for the test
                self._errors.append(error)
                raise

    def _read(self, connection):
        self._note_seen(row[0] for row in connection.execute(LAST))

    def _note_seen(self, ids):
        found = list(ids)
        with self._lock:
            self.answers.seen.update(found)

    def _handle(self, connection):
        connection.execute("DELETE FROM reservation.members")  # of before the crash
        try:
            drain(account, self._address)
        except DatabaseUnavailableError:
            raise
        except StoreError as error:
            if not self._is_down():
                raise AssertionError(f"the consumer failed: {error}") from error

    def _is_down(self):
        try:
            psycopg.connect(self._address).close()
        except psycopg.OperationalError:
            return True
        return False

    def _sender(self, chance):
        def send(connection):
            store = MessageStore(connection)
            known = chance.choice(self._sent[-100:]) if self._sent else None
            kind = chance.choice(["new", "new", "batch", "first", "again", "other", "outcome"])
            if kind in ("new", "batch") or known is None:
                self._write(store, kind, [_new(chance) for _ in range(3 if kind == "batch" else 1)])
            elif kind == "again":
                self._write(store, kind, [known])
            elif kind == "first":
                self._first(store, known)
            elif kind == "other":
                self._other(store, known)
            else:
                self._ask(store, known)

        return send

    def _write(self, store, kind, writes):
        self._sent += writes
        positions = store.write_batch(writes)
        with self._lock:
            for write, position in zip(writes, positions, strict=True):
                self.answers.positions[write.id] = position
                self.acknowledged.add(write.id)
            self._count(kind)

    def _first(self, store, known):
        """Write what is refused, because the stream exists."""
        with pytest.raises(ExpectedVersionError) as caught:
            store.write_initial(known.message, known.stream_name)
        version = int(str(caught.value).rpartition("Stream Version: ")[2].rstrip(")"))
        with self._lock:
            versions = self.answers.versions
            versions[known.stream_name] = max(version, versions.get(known.stream_name, -1))
            self._count("first")

    def _other(self, store, known):
        """Write what is refused: because the id is in use, or else because the stream exists."""
        write = Write(open_("other"), known.stream_name, known.id, expected_version=-1)
        with pytest.raises((MessageIdConflictError, ExpectedVersionError)) as caught:
            store.write_batch([write])
        if caught.type is MessageIdConflictError:
            self._note_stored(known, "other")

    def _ask(self, store, known):
        """Ask what became of a command, which is pending at least if it is there."""
        if store.outcome(known.message, account).state != "unknown":
            self._note_stored(known, "outcome")

    def _note_stored(self, write, kind):
        with self._lock:
            self.acknowledged.add(write.id)
            self.answers.positions.setdefault(write.id)
            self._count(kind)

    def _count(self, kind):
        self.answers.kinds[kind] = self.answers.kinds.get(kind, 0) + 1


def _new(chance):
    of = chance.choice(ACCOUNTS)
    key = str(uuid.UUID(int=chance.getrandbits(128), version=4))
    return Write(
        deposit(key, account=of),
        f"account:command-{of}",
        uuid.UUID(int=chance.getrandbits(128), version=4),
    )


def check(connection, answers, after):
    """Compare the log with what was answered; return its end and how many messages are lost."""
    contradicted = connection.execute(
        CONTRADICTED,
        {
            "ids": list(answers.positions),
            "positions": list(answers.positions.values()),
            "streams": list(answers.versions),
            "versions": list(answers.versions.values()),
        },
    ).fetchall()
    assert contradicted == []
    assert connection.execute(WITHOUT_CAUSE, {"after": after}).fetchall() == []
    stored = connection.execute(
        "SELECT count(*) FROM message_store.messages WHERE id = ANY (%s)", [list(answers.seen)]
    )
    ((end,),) = connection.execute(
        "SELECT max(global_position) FROM message_store.messages"
    ).fetchall()
    return end, len(answers.seen) - stored.fetchall()[0][0]


@pytest.mark.parametrize(
    ("seed", "crashes"),
    [(FIRST, 4), *((FIRST + n, 50) for n in range(1, 5))],
)
def test_no_answer_is_in_vain_whenever_the_server_stops(server_folder, seed, crashes):
    """Every acknowledged message survives, and no effect outlives its cause."""
    end, lost = 0, 0
    chance = random.Random(seed)
    with closing(SlowServer(server_folder, 2)) as server:
        with psycopg.connect(server.address, autocommit=True) as connection:
            install(connection)
            store = MessageStore(connection)
            for name in ACCOUNTS:
                store.write(open_(name), f"account:command-{name}")
        with Load(server.address, seed) as load:
            for _ in range(crashes):
                load.until_answered(chance.randrange(50, 200))
                server.crash()
                with psycopg.connect(server.address, autocommit=True) as connection:
                    end, gone = check(connection, load.taken(), end)
                lost += gone
        with psycopg.connect(server.address, autocommit=True) as connection:
            check(connection, load.taken(), end)
            drain_all(connection)
            assert broken(connection, load.acknowledged) == {}
    # Else no crash came between a commit and its flush, and nothing was shown.
    assert lost > 0 or crashes < 50
