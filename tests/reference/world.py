"""A history played on a real store with the real consumers, and compared with the interpreter."""

import contextlib
import itertools
import json
import os
import signal
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
from psycopg import Connection, conninfo
from psycopg.pq import ConnStatus
from structlog.testing import capture_logs

from consumers.failures.failure import Failure
from consumers.group.administration import apply_changes, find_idle, plan_move
from consumers.loop import draining
from consumers.loop.consumer import Consumer
from consumers.options import Options
from consumers.runtime.observability.logs import Log
from consumers.runtime.observability.telemetry import Telemetry
from consumers.runtime.session import Session
from consumers.runtime.stopping import Stop
from reservation import MessageStore
from reservation.errors import StoreError
from reservation.idempotence.state_based.states import looking
from reservation.postgres.connection import connect
from reservation.store.statements import run
from reservation.testing.reference.interpreter import HandlingOutcome, Interpreter
from reservation.testing.reference.log import MemoryLog
from tests.apps.idempotence import empty
from tests.reference.environment import ENVIRONMENT, LATE, ROLE, Environment
from tests.reference.histories import Action, Back, History, Run, Send, Sent
from tests.reference.plans import build
from tests.support.liveness import stuck

RESTARTS = 60  # of a consumer, until it counts as standing still


# What a store that can have outages is asked for, at an exchange of a consumer with the server.
OUTAGES = ["crash", "failover"]


# Seconds until the next attempt, at most, for which a consumer here waits.
SOON = 1.0


class Died(BaseException):
    """The process is killed."""


class Now(Stop):
    """Waits for a wake-up alone, and has faults repaired meanwhile."""

    mend: Callable[[], object]

    def wait(self, seconds: float, wake: int | None = None) -> bool:
        if seconds and wake is None:
            self.mend()
        return super().wait(0 if wake is None else seconds, wake)

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


class Draining(Consumer):
    """Stops where its category ends, and no message is tried again soon."""

    def _wait(self, connection: Connection[Any], stop: Stop) -> bool:
        if self._running:
            return super()._wait(connection, stop)
        if self._due.seconds > SOON:
            stop.request()
        return False


class Counting(draining.CountingTelemetry):
    """Counts the outcomes of the messages, and lets consumers wait for the database."""

    def lacks_database(self, error: Exception) -> None:
        Telemetry.lacks_database(self, error)


class Faulty(Session):
    """A session on which something happens at chosen exchanges, counted over all connections."""

    faults: dict[int, str]
    environment: Environment
    outage: Callable[[str], None]
    exchanges = 0

    def _open(self) -> Connection[Any]:
        connection = super()._open()
        wait = connection.wait

        def counted(*arguments: Any, **options: Any) -> Any:
            self.exchanges += 1
            kind = self.faults.pop(self.exchanges, "")
            if kind == "die":
                end(self.environment.control, connection)
                raise Died
            if kind == "cut":
                terminate(self.environment.control, connection)
            if kind in ENVIRONMENT:
                self.environment.disturb(kind)
            if kind in OUTAGES:
                self.outage(kind)
            result = wait(*arguments, **options)
            if kind == "die after":
                end(self.environment.control, connection)
                raise Died
            if kind == "cut after":
                cut(self.environment.control, connection)
                raise psycopg.OperationalError("the connection was cut")
            return result

        connection.wait = counted
        return connection


def end(control: Connection[Any], connection: Connection[Any]) -> None:
    """Close a connection as the end of its process does, and wait until the server noticed."""
    pid = connection.info.backend_pid
    connection.pgconn.finish()
    while control.execute("SELECT FROM pg_stat_activity WHERE pid = %s", [pid]).fetchall():
        pass


def cut(control: Connection[Any], connection: Connection[Any]) -> None:
    """End a connection as the server or the network does."""
    terminate(control, connection)
    while connection.pgconn.status != ConnStatus.BAD:
        with contextlib.suppress(psycopg.OperationalError):
            connection.pgconn.consume_input()


def terminate(control: Connection[Any], connection: Connection[Any]) -> None:
    control.execute("SELECT pg_terminate_backend(%s, 60000)", [connection.info.backend_pid])


def send(connection: Connection[Any], messages: Sequence[Sent]) -> None:
    """Write messages with the client, and again, as a sender does that had no answer.

    What no client of ours would write goes to the function that Message DB's clients call.
    """
    writes = [message.write for message in messages]
    store, left = MessageStore(connection), list(zip(messages, writes, strict=True))
    for sound, group in itertools.groupby(left, lambda pair: pair[1] is not None):
        part = list(group)
        if sound:
            for _ in range(2):
                store.write_batch([write for _, write in part if write])
            continue
        for message, _ in part:
            id_, *rest = message.row
            try:
                connection.execute(
                    "SELECT message_store.write_message(%s::varchar, %s, %s, %s::jsonb, %s::jsonb)",
                    [str(id_), *rest],
                )
            except psycopg.errors.UniqueViolation as error:
                if error.diag.constraint_name != "messages_id":  # the sequence was set back
                    raise StoreError("The message was not written") from error


class World:
    """A store on which a history is played."""

    def __init__(self, address: str) -> None:
        self.owner = address
        self.telemetry, self.impatient = Counting(), False
        self.counts: Counter[str] | None = None
        self.sender: Connection[Any] | None = None  # where it is another than that of `control`
        self.address = conninfo.make_conninfo(address, user=ROLE)
        self.environment = Environment(address)
        self.connect()
        self.environment.make_role()
        self.control.execute(
            "CREATE TABLE IF NOT EXISTS chaos_rows (message text);"
            f"GRANT INSERT ON chaos_rows TO {ROLE}; DELETE FROM chaos_rows"
        )
        empty(self.control)

    def connect(self) -> None:
        """Open the connection of someone who is no consumer."""
        self.control = connect(self.owner, autocommit=True)
        self.environment.control = self.control

    def close(self) -> None:
        """Close it, with nothing left out of order."""
        self.environment.mend()
        self.control.close()

    def before(self, action: Action) -> None:
        """Prepare the next step."""

    def outage(self, kind: str) -> None:
        """Have an outage of a kind, at an exchange of a consumer with the server."""
        raise NotImplementedError

    def play(self, history: History) -> None:
        """Play one step of the history."""
        self.plan, self.telemetry = history.plan, Counting()
        self.impatient = history.impatient
        self.counts = self.telemetry.counts
        self.component = build(self.plan)
        for action in history.actions:
            self.before(action)
            match action:
                case Send(messages):
                    send(self.sender or self.control, messages)
                case Back(messages):
                    self.back(messages)
                case Run():
                    self.run(action, history.partitions)

    def pending(self, category: str) -> bool:
        (found,) = self.control.execute(
            "SELECT EXISTS (SELECT FROM message_store.messages m"
            " WHERE message_store.category(m.stream_name) = %(category)s AND m.global_position >"
            "  coalesce((SELECT min(position) FROM reservation.positions"
            "   WHERE category = %(category)s), 0))"
            " OR EXISTS (SELECT FROM reservation.dead_letters"
            "   WHERE category = %(category)s AND state = 'waiting'"
            "   AND next_attempt_at < now() + make_interval(secs => %(soon)s))"
            " OR EXISTS (SELECT FROM reservation.parked_heads('thing', %(category)s, NULL, 1, 1))",
            {"category": category, "soon": SOON},
        ).fetchall()[0]
        return bool(found)

    def run(self, run: Run, partitions: int) -> None:
        """Take the categories to their ends, in turns until nothing is left in any."""
        categories = self.plan.categories
        faults = {
            category: {
                fault.at: fault.kind
                for fault in run.faults
                if categories[fault.consumer % len(categories)] == category
            }
            for category in categories
        }
        while pending := [left for left in categories if self.pending(left)]:
            self.drain(pending[0], run.batch_size, faults[pending[0]], partitions)
            self.environment.mend()

    def drain(self, category: str, size: int, faults: dict[int, str], partitions: int) -> None:
        exchanges = 0
        known = self.control.execute(
            "SELECT FROM reservation.groups WHERE category = %s", [category]
        ).fetchall()
        share = None if known else partitions
        for _ in range(RESTARTS):
            stop, log = Now(), Log("thing", category)
            stop.mend = self.environment.mend
            session = Faulty(self.address, "reservation chaos", log, until=stop)
            session.faults, session.exchanges = faults, exchanges
            session.environment, session.outage = self.environment, self.outage
            consumer = Draining(
                session,
                self.component,
                category,
                Options(size, partitions=share),
                telemetry=self.telemetry,
                log=log,
            )
            if self.impatient:
                consumer._event_loop.patience = 0.0
            try:
                with session:
                    consumer.run(stop)
                break
            except BaseException as error:
                if self.environment.mend() and isinstance(error, StoreError):
                    continue  # it ended with status 2 because of a fault that is repaired now
                cause = error.__cause__ or error
                if not isinstance(cause, Died) and str(cause) != "as it was drawn":
                    raise
            finally:
                exchanges = session.exchanges
                stop.close()
        else:
            raise AssertionError(f"the consumer of {category} stands still")

    def back(self, messages: int) -> None:
        """Set positions back, as an operator does, unless messages wait behind others."""
        waiting = (
            "SELECT FROM reservation.dead_letters"
            " WHERE entity IS NOT NULL AND state <> 'handled' LIMIT 1"
        )
        if self.control.execute(waiting).fetchall():
            return
        for category in self.plan.categories:
            group = find_idle(self.control, "thing", category)
            read = self.control.execute(
                "SELECT global_position FROM message_store.messages m"
                " WHERE message_store.category(m.stream_name) = %s AND global_position <= %s"
                " AND m.stream_name NOT LIKE %s ORDER BY 1",
                [category, group.positions[0], LATE],
            ).fetchall()
            to = [0, *(position for (position,) in read)][max(len(read) - messages, 0)]
            apply_changes(self.control, [plan_move(self.control, group, [to])])

    def differences(self, history: History) -> list[str]:
        """Return the differences of the store from the interpreter's result."""
        found = stored(self.control)
        ids = {stream: messages[0]["id"] for stream, messages in found["messages"].items()}
        expected, rows = interpret(history, ids)
        if depends_on_time(history, expected):
            return []
        differences = list(compare(found, expectation(expected, rows), "the store"))
        calm = not any(
            isinstance(action, Back) or getattr(action, "faults", ()) for action in history.actions
        )
        if calm and self.counts is not None and +self.counts != +expected.counts:
            differences.append(f"counts are {self.counts}, not {expected.counts}")
        return differences


def depends_on_time(history: History, expected: Interpreter) -> bool:
    """Return whether the result depends on when messages that failed are tried again.

    It does where messages of several entities share streams or keys, and one of them is tried
    again, or is awaited, after others have been handled.
    """
    sent = [
        one for action in history.actions if isinstance(action, Send) for one in action.messages
    ]
    things = {one.thing for one in sent}
    tried_again = any(
        taken.error is not None and reason_of(taken) == "failed"
        for taken in expected.letters.values()
    )
    awaited = history.impatient and any(role.is_async for role in history.plan.roles)
    return history.partitions == 1 and len(things) > 1 and (tried_again or awaited)


class Recorder:
    """Stands for the connection of handlers, and keeps the rows that they insert."""

    def __init__(self) -> None:
        self.rows: list[str] = []

    def execute(self, _: str, row: list[str]) -> None:
        self.rows += row

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Forget the rows of a block that raises."""
        before = len(self.rows)
        try:
            yield
        except BaseException:
            del self.rows[before:]
            raise


def interpret(history: History, ids: dict[str, str]) -> tuple[Interpreter, list[str]]:
    """Let the interpreter do the same; return it, and the rows that handlers inserted."""
    plan, recorder = history.plan, Recorder()
    interpreter = Interpreter(
        build(plan),
        MemoryLog(),
        lambda stream: ids.get(stream) or str(uuid.uuid5(uuid.NAMESPACE_URL, stream)),
        recorder,
    )
    before = signal.signal(signal.SIGINT, lambda *_: None)  # what handlers raise is no interrupt
    try:
        _interpret(history, interpreter)
    finally:
        signal.signal(signal.SIGINT, before)
    return interpreter, recorder.rows


def _interpret(history: History, interpreter: Interpreter) -> None:
    for action in history.actions:
        match action:
            case Send(messages):
                for message in messages:
                    id_, *row = message.row
                    if interpreter.log.find(id_) is None:
                        interpreter.log.add(str(id_), *row)
            case Back(messages):
                if not any(letter.entity for letter in interpreter.letters.values()):
                    interpreter.back(messages)
            case Run():
                while any(interpreter.drain(of) for of in history.plan.categories):
                    pass


def expectation(interpreter: Interpreter, inserted: list[str]) -> dict[str, Any]:
    """Return what the interpreter stored, without global positions."""
    rows = [
        (m.id, m.stream_name, m.type, m.data, m.metadata_json, m.global_position, m.position)
        for m in interpreter.log.messages
    ]
    return {
        "messages": by_stream(rows),
        "letters": {
            f"{of} {name} {at}": [reason_of(letter), letter.entity]
            for (of, name, at), letter in interpreter.letters.items()
        },
        "states": {name: json.loads(text) for name, text in interpreter.states.items()},
        "rows": sorted(inserted),
    }


def reason_of(letter: HandlingOutcome) -> str:
    """Return the reason of a dead letter."""
    if letter.error is None:
        return letter.outcome
    reason = Failure.of(letter.error).reason
    return FAILED.get(reason, reason)


def stored(connection: Connection[Any]) -> dict[str, Any]:
    """Return the contents of the store in the same form."""
    execute = connection.execute
    rows = execute(
        "SELECT id::text, stream_name, type, data::text, metadata::text, global_position, position"
        " FROM message_store.messages WHERE stream_name NOT LIKE %s ORDER BY global_position",
        [LATE],
    ).fetchall()
    letters = execute(
        "SELECT d.category, d.stream_name, m.position, d.reason, d.entity"
        " FROM reservation.dead_letters d"
        " JOIN message_store.messages m USING (global_position)"
        " WHERE d.state <> 'handled'"
    ).fetchall()
    streams = execute("SELECT DISTINCT stream_name FROM reservation.states").fetchall()
    return {
        "messages": by_stream(rows),
        "letters": {
            f"{of} {name} {at}": [FAILED.get(reason, reason), entity]
            for of, name, at, reason, entity in letters
        },
        "states": {
            name.replace(":state", "", 1): newest_state(connection, name) for (name,) in streams
        },
        "rows": sorted(row for (row,) in execute("SELECT message FROM chaos_rows").fetchall()),
    }


def newest_state(connection: Connection[Any], stream_name: str) -> Any:
    """Return the newest state of a stream."""
    (stored,) = run(connection, looking([(stream_name, str(uuid.uuid4()))]))
    return None if stored.before is None else json.loads(stored.before.text)


# A message on which the process was killed too may be given up for either.
FAILED = {"handler": "failed", "process_died": "failed", "write": "failed"}


def by_stream(rows: list[Any]) -> dict[str, list[Any]]:
    """Return messages by their streams; named by position, not global position."""
    names = {at: f"{stream} {position}" for _, stream, _, _, _, at, position in rows}
    streams: dict[str, list[Any]] = {}
    for id_, stream, type_, data, metadata, _, position in rows:
        meta = json.loads(metadata or "null") or {}
        for holder, key in (
            (meta, "causationMessageGlobalPosition"),
            (meta.get("localProperties", {}), "sequence"),
        ):
            if key in holder:
                holder[key] = names.get(holder[key], "nowhere")
        streams.setdefault(stream, []).append(
            {
                "position": position,
                "type": type_,
                "id": id_,
                "data": json.loads(data or "null"),
                "metadata": meta,
            }
        )
    return streams


def compare(found: Any, expected: Any, where: str) -> Iterator[str]:
    """Give each place in which two structures differ."""
    if isinstance(found, dict) and isinstance(expected, dict):
        for key in [*found, *(key for key in expected if key not in found)]:
            yield from compare(
                found.get(key, "nothing"), expected.get(key, "nothing"), f"{where}, {key}"
            )
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        for n, pair in enumerate(zip(found, expected, strict=True)):
            yield from compare(*pair, f"{where} {n}")
    elif found != expected:
        yield f"{where}: {found}, not {expected}"


def differences(address: str, played: History) -> list[str]:
    """Play a history; return broken invariants, and differences from the interpreter's result."""
    with capture_logs():
        world = World(address)
        try:
            world.play(played)
            return [*broken(world.control), *world.differences(played)]
        finally:
            world.close()


def broken(connection: Connection[Any]) -> list[str]:
    """Return the invariants that plain SQL finds broken."""
    found = [
        f"{name}: {row}"
        for name, query in _INVARIANTS.items()
        for row in connection.execute(query).fetchall()
    ]
    return [*found, *stuck(connection)]


_INVARIANTS = {
    "I2, a reservation stream with more than one message": """
        SELECT stream_name, count(*) FROM message_store.messages m
        WHERE metadata->>'causationMessageStreamName' LIKE 'thing:command%'
          AND (stream_name LIKE 'thingA-%' OR stream_name LIKE 'thingB-%')
        GROUP BY 1 HAVING count(*) > 1""",
    "I3, an effect without a cause": """
        SELECT m.stream_name, m.position FROM message_store.messages m
        WHERE m.metadata ? 'causationMessageStreamName' AND NOT EXISTS (
          SELECT FROM message_store.messages c
          WHERE c.stream_name = m.metadata->>'causationMessageStreamName'
            AND c.position = (m.metadata->>'causationMessagePosition')::bigint
            AND c.global_position = (m.metadata->>'causationMessageGlobalPosition')::bigint)""",
    "I4, positions with gaps": """
        SELECT stream_name, count(*), max(position) FROM message_store.messages
        GROUP BY 1 HAVING count(*) <> max(position) + 1 OR min(position) <> 0""",
    "I8, a letter of no message": """
        SELECT d.global_position FROM reservation.dead_letters d
        WHERE NOT EXISTS (SELECT FROM message_store.messages m
          WHERE m.global_position = d.global_position)""",
}
