"""Every order in which two consumers can send their statements, with kills at every place.

Each consumer runs the real code in a thread with a real connection, and stops before each statement
that it sends. The explorer lets one of them go on by a statement, or kills it there: its connection
is closed, the server rolls back, and it starts anew. A consumer that waits for a lock of another
cannot go on, as the server reports.

What a consumer will do depends only on what it has seen, and that on what was committed when each
of its statements ran. So of the schedules that are equal in these respects only one is continued:

- what is committed: the messages with their causes, the positions, the records of strategies, and
  the places of series;
  of every other table, the number of its rows;
- for each consumer, what was committed at each of its statements since it began afresh;
- how many kills are left.

A consumer that has to run a batch again must have lost to another. One that fails although nothing
was committed since it began has met what its own strategy should have recognized.

(The idea is that of model checkers that run the program itself, as VeriSoft and CHESS do.)
"""

import itertools
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import Connection
from psycopg.pq import TransactionStatus

from reservation.postgres.exchange.keeping_connection import KeepingConnection
from tests.apps.idempotence import empty, kept_tables

PATIENCE = 30.0  # seconds that a consumer may neither stop nor wait for a lock
_GLANCE = 0.003  # seconds until the server is asked whether a statement waits for a lock

# A consumer's whole work, on a connection of its own.
Program = Callable[[Connection[Any]], None]

# The committed state as one number; and as the number that it would be if the consumers had each
# other's names.
Version = tuple[int, int]


class _Ended(BaseException):
    """The consumer is killed, or the schedule is not continued."""


# What may commit: the end of psycopg's transactions, and statements that are sent together.
_ENDING = ("_exit_gen", "put_and_taken")


class Stepping(psycopg.Connection[Any]):
    """A connection that asks before it sends a statement."""

    ask: Callable[[], None] | None = None
    afresh: str | None = None
    lost: BaseException | None = None
    ends = False
    commits = False

    def begin_afresh(self, name: str) -> None:
        """Note that its user remembers nothing of what it saw, but this name."""
        self.afresh = name

    def begin_again(self, error: BaseException) -> None:
        """Note that its user has lost to another, and tries once more."""
        self.lost = error

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        """Send a statement and wait for its answer."""
        name = args[0].__name__
        # A statement outside of a transaction is one of its own.
        is_single = name != "_enter_gen" and self._is_idle()
        self.ends = self.commits or name in _ENDING or is_single
        # A BEGIN sees and does nothing, so a stop before it equals one after it.
        if self.ask is not None and name != "_enter_gen":
            self.ask()
        return super().wait(*args, **kwargs)

    def _is_idle(self) -> bool:
        return self.info.transaction_status == TransactionStatus.IDLE


class SteppingTogether(Stepping, KeepingConnection):
    """The same for statements that are sent together, as a consumer's process sends them.

    A step is then a round trip. What others commit between two statements of one is not explored.
    """

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Execute a statement."""
        self.commits = args[0] == "COMMIT"
        try:
            return super().execute(*args, **kwargs)
        finally:
            self.commits = False


class _Consumer:
    """One consumer in its thread."""

    def __init__(self, program: Program, connection: Stepping) -> None:
        self.program = program
        self.connection = connection
        self.pid = connection.info.backend_pid
        self.seen: tuple[Version, ...] = ()
        self.began: Version | None = None
        self.ends = False
        self.blocked = False
        self.done = False
        self.failure: BaseException | None = None
        self.arrived = threading.Event()
        self._orders: queue.SimpleQueue[bool] = queue.SimpleQueue()
        connection.ask = self._pause
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.program(self.connection)
        except _Ended:
            pass
        except BaseException as error:  # noqa: BLE001  which the explorer raises
            self.failure = error
        self.done = True
        self.arrived.set()

    def _pause(self) -> None:
        self.arrived.set()
        if not self._orders.get():
            self.connection.ask = None
            raise _Ended

    def go_on(self) -> None:
        self.ends = self.connection.ends
        self.arrived.clear()
        self._orders.put(True)

    def end(self) -> None:
        """End it where it is stopped; what it has not committed is rolled back."""
        if not self.done:
            self._orders.put(False)
        self._thread.join(PATIENCE)
        self.connection.ask = None


@dataclass(frozen=True, slots=True)
class Choice:
    """The next step: a consumer goes on by a statement, or is killed."""

    consumer: int
    kill: bool = False

    def __str__(self) -> str:
        return f"{'kill ' if self.kill else ''}{self.consumer + 1}"


@dataclass(slots=True)
class Explored:
    """What was explored.

    Attributes:
        states: how many different states were met.
        schedules: how many were run to their end.
        runs: how many were begun.
    """

    states: int = 0
    schedules: int = 0
    runs: int = 0


@dataclass(slots=True)
class Violation(AssertionError):
    """A schedule with a wrong end.

    Attributes:
        schedule: the consumers in the order of their statements, from 1.
        reason: what is wrong at the end.
    """

    schedule: list[str]
    reason: str

    def __str__(self) -> str:
        return f"{self.reason}; after {', '.join(self.schedule)}"


@dataclass
class Explorer:
    """Explores the schedules of two consumers on one database.

    If they do the same, of two states that differ in nothing but which of them is where, one is
    gone on with.

    Attributes:
        address: of the database, which is emptied before each schedule.
        names: those under which their positions are; the same if they share these.
        programs: what each consumer does.
        prepare: writes what there is at the beginning.
        check: raises AssertionError where the end is not as it must be.
        kills: how many kills there are in a schedule at most.
        together: whether statements are sent together that can be.
        alike: whether they do the same, so that it does not matter which of them is where.
    """

    address: str
    names: tuple[str, str]
    programs: tuple[Program, Program]
    prepare: Callable[[Connection[Any]], None]
    check: Callable[[Connection[Any]], None]
    kills: int = 1
    together: bool = False
    alike: bool = True
    _seen: set[object] = field(default_factory=set)
    _free: list[Stepping] = field(default_factory=list)

    def explore(self) -> Explored:
        """Continue once from every state."""
        found, todo = Explored(), [()]
        with psycopg.connect(self.address, autocommit=True) as control:
            self._control = control
            counts = [f"(SELECT count(*) FROM {table})" for (table,) in kept_tables(control)]
            self._counts = f"SELECT {', '.join(counts)}"
            try:
                while todo:
                    prefix: tuple[Choice, ...] = todo.pop()
                    found.runs += 1
                    todo.extend(self._run(prefix, found))
            finally:
                for connection in self._free:
                    connection.close()
        found.states = len(self._seen)
        return found

    def _run(self, prefix: tuple[Choice, ...], found: Explored) -> Iterator[tuple[Choice, ...]]:
        """Run one schedule to its end, or to a state that was met; give those to run later."""
        empty(self._control)
        self.prepare(self._control)
        self._kills, self._version = 0, self._committed()
        self._consumers = [_Consumer(program, self._connection()) for program in self.programs]
        taken: list[Choice] = []
        later: list[tuple[Choice, ...]] = []
        try:
            for consumer in self._consumers:
                self._settle(consumer, went_on=False)
            self._first = [consumer.seen for consumer in self._consumers]
            for choice in prefix:
                self._take(choice, taken)
            while self._state() not in self._seen:
                self._seen.add(self._state())
                choices = [
                    choice for choice in self._choices() if self._after(choice) not in self._seen
                ]
                if all(consumer.done for consumer in self._consumers):
                    found.schedules += 1
                    self.check(self._control)
                    break
                if not choices:
                    break
                later.extend((*taken, choice) for choice in choices[1:])
                self._take(choices[0], taken)
        except AssertionError as error:
            raise Violation([str(choice) for choice in taken], str(error)) from error
        finally:
            self._abandon()
        return iter(later)

    def _connection(self) -> Stepping:
        if self._free:
            return self._free.pop()
        kind = SteppingTogether if self.together else Stepping
        return kind.connect(
            self.address,
            autocommit=True,
            prepare_threshold=None,
            options="-csynchronous_commit=off",
        )

    def _state(self) -> object:
        now = [(consumer.seen, consumer.blocked, consumer.done) for consumer in self._consumers]
        return self._seen_by(now, self._kills)

    def _seen_by(
        self, one_by_one: list[tuple[tuple[Version, ...], bool, bool]], kills: int
    ) -> object:
        def numbered(side: int) -> tuple[int, ...]:
            parts = [
                (hash(tuple(version[side] for version in seen)), blocked, done)
                for seen, blocked, done in one_by_one[:: 1 - 2 * side]
            ]
            return (self._version[side], kills, *itertools.chain.from_iterable(parts))

        return min(numbered(0), numbered(1)) if self.alike else numbered(0)

    def _after(self, choice: Choice) -> object:
        """Return the state that a choice leads to, unless that commits or waits for a lock."""
        kills = self._kills + choice.kill
        one_by_one = []
        for n, consumer in enumerate(self._consumers):
            seen = consumer.seen
            if n == choice.consumer:
                # One that is killed begins as all of them began.
                seen = self._first[n] if choice.kill else (*seen, self._version)
            elif consumer.blocked:
                return None  # which may get its lock
            one_by_one.append((seen, False, consumer.done))
        return self._seen_by(one_by_one, kills)

    def _choices(self) -> Iterable[Choice]:
        able = [
            n
            for n, consumer in enumerate(self._consumers)
            if not (consumer.done or consumer.blocked)
        ]
        waiting = [consumer for consumer in self._consumers if consumer.blocked]
        assert able or not waiting, "the consumers wait for each other"
        yield from (Choice(n) for n in able)
        if self._kills < self.kills:
            moved = [n for n in able if self._consumers[n].seen != self._first[n]]
            yield from (Choice(n, kill=True) for n in moved)

    def _take(self, choice: Choice, taken: list[Choice]) -> None:
        taken.append(choice)
        consumer = self._consumers[choice.consumer]
        if choice.kill:
            self._kills += 1
            self._kill(consumer)
            self._consumers[choice.consumer] = consumer = _Consumer(
                consumer.program, self._connection()
            )
            self._settle(consumer, went_on=False)
        else:
            consumer.go_on()
            self._settle(consumer)
        for other in self._consumers:
            if other.blocked:
                self._settle(other)

    def _kill(self, consumer: _Consumer) -> None:
        consumer.connection.close()
        consumer.end()
        gone = "SELECT FROM pg_stat_activity WHERE pid = %s"
        while self._control.execute(gone, [consumer.pid]).fetchall():
            pass

    def _settle(self, consumer: _Consumer, *, went_on: bool = True) -> None:
        """Wait until a consumer is stopped, done, or waits for a lock."""
        glances = 0
        while not consumer.arrived.wait(_GLANCE):
            glances += 1
            assert glances * _GLANCE < PATIENCE, "a consumer hangs"
            rows = self._control.execute(_BLOCKED, [consumer.pid]).fetchall()
            if rows[0][0] and not consumer.arrived.is_set():
                consumer.blocked = True
                return
        consumer.blocked = False
        if went_on:
            consumer.seen = (*consumer.seen, self._version)
            consumer.began = consumer.began or self._version
            if consumer.ends:
                self._version = self._committed()
        connection = consumer.connection
        if connection.lost is not None:
            alone = consumer.began == self._version
            assert not alone, f"with nobody in its way a consumer fails: {connection.lost}"
            connection.lost = consumer.began = None
        if connection.afresh is not None:
            consumer.seen = ((hash(connection.afresh),) * 2,)
            connection.afresh = consumer.began = None
        if consumer.failure is not None:
            raise AssertionError(repr(consumer.failure)) from consumer.failure

    def _abandon(self) -> None:
        """End what still runs, beginning with those that others wait for."""
        for consumer in sorted(self._consumers, key=lambda consumer: consumer.blocked):
            if not consumer.arrived.wait(PATIENCE):
                consumer.connection.cancel()
                consumer.arrived.wait(PATIENCE)
            consumer.end()
            idle = consumer.connection.info.transaction_status == TransactionStatus.IDLE
            if consumer.failure is not None or not idle:
                consumer.connection.close()
            else:
                self._free.append(consumer.connection)

    def _committed(self) -> Version:
        """Return what stands for what is committed."""
        rows = [self._control.execute(query).fetchall() for query in (_KEPT, self._counts)]
        positions = self._control.execute(_POSITIONS).fetchall()
        other = dict(zip(self.names, reversed(self.names), strict=True))
        swapped = [(other[name], *rest) for name, *rest in positions]
        kept = hash(tuple(map(tuple, rows)))
        return hash((kept, *sorted(positions))), hash((kept, *sorted(swapped)))


_BLOCKED = "SELECT cardinality(pg_blocking_pids(%s)) > 0"
# Ids, times and gaps between positions differ between schedules, and nobody decides by them.
_KEPT = """
    WITH messages AS (
      SELECT m.*, rank() OVER (ORDER BY m.global_position) AS n FROM message_store.messages m
    )
    SELECT 'message', m.n, m.stream_name, m.position, m.type,
           (m.data - 'processedTime' - 'sequence')::text,
           (m.metadata->>'causationMessageStreamName')
             || ' ' || (m.metadata->>'causationMessagePosition')
    FROM messages m
    UNION ALL
    SELECT 'processed', m.n, '', 0, '', NULL, ''
    FROM reservation.processed_messages p JOIN messages m USING (global_position)
    UNION ALL
    SELECT 'revision', r.revision, r.entity_stream, 0, r.source, NULL, ''
    FROM reservation.revisions r
    UNION ALL
    SELECT 'state', m.n, s.stream_name, s.position, '', s.state::text, ''
    FROM reservation.states s JOIN messages m USING (global_position)
    UNION ALL
    SELECT 'letter', m.n, d.consumer, d.attempts, d.state, d.reason, ''
    FROM reservation.dead_letters d JOIN messages m USING (global_position)
    UNION ALL
    SELECT 'series', extract(year FROM s.reached)::bigint, s.name,
           extract(year FROM s.attempted)::bigint, s.expression, (s.attempt_at > now())::text, ''
    FROM reservation.series s
    ORDER BY 1, 2, 3, 4
"""
_POSITIONS = """
    SELECT p.consumer, p.category, p.partition, p.epoch,
           (SELECT count(*) FROM message_store.messages m WHERE m.global_position <= p.position)
    FROM reservation.positions p
"""
