"""Faults of processes that share a category: others go on with the work, and it is done once."""

import random
import signal

import pytest

from bank.traffic import make_traffic
from tests.apps.bank import (
    READS,
    RESERVED,
    broken,
    event_types,
    holder,
    lengthen_leases,
    wait_until_drained,
)
from tests.apps.holding import HELD, Holding
from tests.soak.sending import Sender
from tests.support.chance import seeds
from tests.support.controls import COMMANDS, deposit, open_
from tests.support.proxy import Cut, Proxy
from tests.support.started import PATIENCE, Forked, Started

COMMIT = "COMMIT\0"  # the whole statement, not BEGIN ISOLATION LEVEL READ COMMITTED


def stop(*running):
    """Stop what runs and return the exit statuses."""
    return [process.stop() for process in running]


def test_a_paused_process_finds_that_another_has_done_its_work(
    connection, store, database_url, tmp_path
):
    """A process that is paused in a handler loses its session, and goes on as a member."""
    app = Holding(tmp_path)
    store.write([open_(), deposit(), deposit(HELD), deposit("d3")], COMMANDS)
    with Started(database_url, "--only", "commands") as commands:
        wait_until_drained(connection, commands, categories=["account:command"])
        with app.start(database_url, "--only", "reserved") as paused:
            app.wait()
            with Started(database_url, "--only", "reserved") as other:
                other.wait_for("standing_by")
                paused.workers[0].suspend()
                other.wait_for("consumer_started", position=0, epoch=2)
                wait_until_drained(connection, other)
                paused.workers[0].resume()
                app.let_go()
                paused.wait_for("database_available")
                assert other.stop() == 0
            store.write(deposit("d4"), COMMANDS)
            paused.wait_for("batch_committed", handled=1, read=1)
            assert stop(commands, paused) == [0, 0]
            assert '"handled": 3' not in paused.log
    assert event_types(store) == ["Opened"] + ["Deposited"] * 4
    assert broken(connection) == {}


def test_a_process_that_is_paused_while_it_writes_does_not_keep_its_locks(
    connection, store, database_url
):
    """A process paused in a write loses its locks, which others need."""
    # What becomes of commands that the handler reserves decides on what is written after them.
    store.write([open_(), deposit("d1"), deposit("d2")], COMMANDS)
    dawdling(connection)
    only = (database_url, "--only", "commands")
    with Started(*only) as paused, Started(*only) as other:
        while not is_writing(connection):
            assert paused.process.poll() is None
        if other.workers[0].pid == holder(connection, "account:command"):
            paused, other = other, paused
        paused.workers[0].suspend()
        let_write(connection)
        other.wait_for("batch_committed", handled=1)
        wait_until_drained(connection, other, categories=["account:command"])
        paused.workers[0].resume()
        paused.wait_for("database_available")
        assert stop(paused, other) == [0, 0]
    assert event_types(store) == ["Opened"]


def test_messages_are_committed_although_their_process_is_paused(connection, store, database_url):
    """A process paused in a write has sent the commit with it: the messages are handled."""
    store.write([open_(), *(deposit(f"d{n}") for n in range(150))], COMMANDS)
    with Started(database_url, "--only", "commands") as commands:
        wait_until_drained(connection, commands, categories=["account:command"])
        assert commands.stop() == 0
    dawdling(connection)
    with Started(database_url, "--only", "reserved") as paused:
        while not is_writing(connection):
            assert paused.process.poll() is None
        paused.workers[0].suspend()
        let_write(connection)
        try:
            wait_until_drained(connection, paused)
        finally:
            paused.workers[0].resume()
        paused.wait_for("batch_committed", handled=150)
        assert paused.stop() == 0
    assert event_types(store) == ["Opened"] + ["Deposited"] * 150
    assert broken(connection) == {}


def is_writing(connection):
    """Return whether a process is within a write that waits for `let_write`."""
    query = (
        "SELECT FROM pg_locks WHERE locktype = 'advisory' AND (classid, objid) = (0, 1) "
        "AND NOT granted"
    )
    return bool(connection.execute(query).fetchall())


def let_write(connection):
    """Let writes go on."""
    connection.execute("SELECT pg_advisory_unlock(1)")


def dawdling(connection):
    """Let the writes from now on wait for `let_write`."""
    connection.execute(
        "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0 AS $$ "
        "BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END $$"
    )
    connection.execute(
        "CREATE TRIGGER dawdle BEFORE INSERT ON message_store.messages "
        "FOR EACH STATEMENT EXECUTE FUNCTION dawdle()"
    )
    connection.execute("SELECT pg_advisory_lock(1)")


@pytest.mark.parametrize("seed", seeds(2))
def test_a_process_may_be_paused_at_any_moment(connection, database_url, seed):
    """A process may be paused past its lease at any moment; another does its work."""
    chance = random.Random(seed)
    arguments = (database_url, "--batch-size", "20", "--partitions", "4")
    traffic = make_traffic(accounts=20, sends=1000, seed=seed)
    with (
        Started(database_url, "--only", "commands") as commands,
        Started(*arguments, "--only", "reserved") as paused,
        Started(*arguments, "--only", "reserved") as other,
    ):
        for process in (commands, paused, other):
            process.wait_for("consumer_started")
        with Sender(database_url, traffic, 1) as sender:
            for _ in range(chance.randrange(1, 4)):
                paused.wait_for("batch_committed")
            sender.pause(chance.uniform(0, 0.02))
            paused.workers[0].suspend()
            try:
                sender.finish()
                wait_until_drained(connection, commands, other)
            finally:
                paused.workers[0].resume()
            sender.send_late()
            wait_until_drained(connection, commands, other, paused)
        assert stop(commands, other, paused) == [0, 0, 0]
    assert broken(connection, sender.acknowledged) == {}


@pytest.mark.parametrize("when", list(Cut))
def test_a_commit_whose_outcome_is_unknown_is_harmless_in_a_group(connection, database_url, when):
    """After an unknown commit a member reads its positions again and keeps its partitions."""
    lengthen_leases(connection)
    acknowledged = set()
    with (
        Proxy(database_url) as proxy,
        Started(
            proxy.address, "--batch-size", "5", "--workers", "2", "--partitions", "16"
        ) as started,
    ):
        for category in (*READS, *READS):
            started.wait_for("consumer_started", category=category)
        for seed in range(4):
            proxy.cut(when, COMMIT)
            traffic = make_traffic(accounts=20, sends=250, seed=seed)
            with Sender(database_url, traffic, 1) as sender:
                assert proxy.happened.wait(PATIENCE)
                away = started.wait_for("database_unavailable")
                started.wait_for("database_available", category=away["category"])
                sender.finish()
                sender.send_late()
            acknowledged |= sender.acknowledged
        wait_until_drained(connection, started)
        assert started.stop() == 0
        assert "partitions_lost" not in started.log
    assert broken(connection, acknowledged) == {}


def test_supervisors_may_be_killed_and_stopped_while_others_go_on(connection, database_url):
    """Of two supervisors one is replaced, and a worker of the other one dies."""
    arguments = (database_url, "--workers", "2", "--partitions", "16", "--batch-size", "10")
    traffic = make_traffic(accounts=20, sends=2000, seed=1)
    with Sender(database_url, traffic, 1) as sender, Started(*arguments) as lasting:
        for _ in range(2):
            lasting.wait_for("consumer_started", category=RESERVED)
        for ending in (signal.SIGKILL, signal.SIGTERM):
            with Started(*arguments) as passing:
                for _ in range(2):
                    passing.wait_for("consumer_started", category=RESERVED)
                passing.process.send_signal(ending)
                assert passing.process.wait(PATIENCE) == (-ending if ending == 9 else 0)
            lasting.wait_for("partitions_taken", category=RESERVED)
        lasting.workers[-1].kill()
        lasting.wait_for("process_died")
        sender.finish()
        sender.send_late()
        wait_until_drained(connection, lasting)
        assert lasting.stop() == 0
    assert broken(connection, sender.acknowledged) == {}


class Members:
    """The processes that share both categories, which join and leave at random."""

    def __init__(self, database_url, chance):
        self._database_url = database_url
        self._chance = chance
        self._running = {category: [] for category in READS}
        self._paused = []

    def __enter__(self):
        for category in READS:
            for _ in range(2):
                self.join(category)
        return self

    def __exit__(self, *_):
        self.resume()
        for members in self._running.values():
            for member in members:
                member.kill()

    def change(self):
        """Let one join, leave, die, or pause; one that was paused before goes on."""
        self.resume()
        category = self._chance.choice(READS)
        members = self._running[category]
        what = self._chance.choice(["join", "leave", "die", "pause"])
        if what == "join" and len(members) < 4:
            self.join(category)
        elif what == "pause":
            self._paused.append(self._chance.choice(members))
            self._paused[-1].send(signal.SIGSTOP)
        else:
            leaving = members.pop(self._chance.randrange(len(members)))
            # One that was about to start ends as every process does.
            assert leaving.stop() in (0, -signal.SIGTERM) if what == "leave" else leaving.kill()
            self.join(category)

    def join(self, category):
        """Start one more."""
        self._running[category].append(
            Forked(self._database_url, category, batch_size=10, partitions=8)
        )

    def resume(self):
        """Let the paused one continue."""
        while self._paused:
            self._paused.pop().send(signal.SIGCONT)


@pytest.mark.parametrize("seed", seeds(2))
def test_members_may_come_and_go_under_load(connection, database_url, seed):
    """While members come and go, each message is handled once and accounts stay in order."""
    chance = random.Random(seed)
    traffic = make_traffic(accounts=20, sends=1500, seed=seed)
    with Sender(database_url, traffic) as sender, Members(database_url, chance) as members:
        for _ in range(12):
            sender.pause(chance.uniform(0, 0.5))
            members.change()
        sender.finish()
        members.resume()
        wait_until_drained(connection)
        sender.send_late()
        wait_until_drained(connection)
    assert broken(connection, sender.acknowledged) == {}
