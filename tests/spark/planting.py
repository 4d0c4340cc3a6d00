"""Random stores, in which anything may be missing, doubled, contradicted or misplaced."""

import json
import random
import uuid
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
from psycopg import Connection
from psycopg.types.json import Jsonb

from reservation import Component, Key
from reservation.messages.message import followed_id, further_id
from tests.support.stored_positions import store_position


@dataclass
class Open:
    thing_id: str
    amount: Any = 1


@dataclass
class Send:
    """Was `Post`, and its first version had a remark in the place of the note."""

    __schema_version__ = 2

    thing_id: str
    key: str
    amount: Any = 1
    note: str = ""
    at: int = 0


@dataclass
class Count:
    thing_id: str
    key: int
    amount: Any = 1


@dataclass
class Done:
    n: int


@dataclass
class Heard:
    """Was `Noticed`; of another component, as `Rung` is."""

    about: str


@dataclass
class Rung:
    thing_id: str


@dataclass
class Weighed:
    """Of another component; the id of its entity may be written with zeros at its end."""

    thing_id: Decimal


@dataclass
class Touch:
    """Not reserved; the id of its entity may be written in any of the forms of a UUID."""

    thing_id: UUID


def note(data: dict[str, Any]) -> dict[str, Any]:
    return data | {"note": data.get("remark", "")}


component = Component("thing", id="thing_id")
component.initiate(Open)(lambda command, context: None)
component.message(Send, former_names="Post", upcast=note)
for _type, _ignoring in ((Send, "at"), (Count, ())):
    component.handle(_type, key=Key("key", into="sent", ignoring=_ignoring, shared=True))(
        lambda command, entity, context: None
    )
component.handle(Touch, once=None)(lambda command, entity, context: None)
component.message(Done, former_names="Made")
component.message(Heard, former_names="Noticed")
# Where the handler of what is heard begins.
FIRST = 12
component.handle(Heard, category="other", id=lambda heard: heard.about, from_position=FIRST)(
    lambda message, entity, context: None
)
component.handle(Rung, category="other", correlated=True)(lambda message, entity, context: None)
component.handle(Weighed, category="other")(lambda message, entity, context: None)

THINGS: list[Any] = [*["1", "2"] * 9, "3+4", "", 1]
KEYS: dict[str, list[Any]] = {"Send": ["a", "b", "5", "x+y"], "Count": [5, 6, 70]}
ODD_KEYS: list[Any] = ["a", "5", 5, 5.0, "", None, True, [5], {"a": 5}]
# What is written of an id, and the id that it is.
WEIGHTS = {"1.50": "1.5", "2.0": "2", "2": "2", "0.000": "0"}
TOUCHED = UUID("1f0ba3a5-3c5c-4d3c-9a55-2a5a0e3dbb5f")
TOUCHES = {
    str(TOUCHED): str(TOUCHED),
    TOUCHED.hex: str(TOUCHED),
    str(TOUCHED).upper(): str(TOUCHED),
}
NOT_INITIAL: list[Any] = [{}, {}, {"initiation": False}, {"initiation": "true"}]
NOTES = ["", "", "", "x"]
AMOUNTS: list[Any] = [1, 1, 1.0, 2, [1, 2], [2, 1], {"a": 1, "b": 2}, {"a": 2, "b": 1}]


class Planting:
    """Adds to a store at random.

    Attributes:
        chance: the random numbers, by which it can be repeated.
    """

    def __init__(self, connection: Connection[Any], seed: int) -> None:
        self.chance = random.Random(seed)
        self._connection = connection
        self._is_behind = False
        self._free: list[int] = []
        self._places: dict[str, int] = {}
        self._started: set[str] = set()
        self._sent: list[tuple[int, str, str, dict[str, Any]]] = []
        self._causes: list[tuple[int, str, dict[str, Any]]] = []

    def messages(self, number: int, *, behind: bool = False) -> None:
        """Write some messages of any kind."""
        plant = [
            *[self._command] * 6,
            *[self._reservation] * 4,
            *[self._events] * 4,
            *[self._foreign] * 4,
            self._touch,
            self._odd,
            self._start,
        ]
        for _ in range(number):
            self._is_behind = behind
            if not behind and self.chance.random() < 0.5:
                self._free.append(self._next())
            self.chance.choice(plant)()

    def _next(self) -> int:
        """Take a global position as a writer does."""
        (at,) = self._connection.execute(
            "SELECT nextval('message_store.messages_global_position_seq')"
        ).fetchall()[0]
        return int(at)

    def consumers(self, head: int, partitions: int) -> None:
        """Give consumers positions, dead letters and conflicts."""
        chance = self.chance
        for category in ("thing:command", "sent", "other"):
            self._connection.execute(
                "INSERT INTO reservation.groups (consumer, category, partitions, first_position) "
                "VALUES ('thing', %s, %s, %s) ON CONFLICT DO NOTHING",
                [category, partitions, chance.choice([None, 0, head // 3])],
            )
            for partition in range(partitions):
                store_position(
                    self._connection,
                    "thing",
                    category,
                    chance.randrange(head // 2, head + 1),
                    partition,
                )
            for at in chance.sample(range(1, head + 1), head // 5):
                state = chance.choice(["dead", "parked", "waiting", "handled", "discarded"])
                self._letter(category, at, state, chance.choice(["conflict", "handler", "key"]))

    def further(self, head: int) -> None:
        """Let consumers go on: no position moves back, and what was read becomes no dead letter."""
        chance = self.chance
        for category in ("thing:command", "sent", "other"):
            held = self._connection.execute(
                "SELECT partition, position FROM reservation.positions "
                "WHERE consumer = 'thing' AND category = %s ORDER BY partition",
                [category],
            ).fetchall()
            for partition, position in held:
                to = chance.randrange(position, head + 1)
                store_position(self._connection, "thing", category, to, partition)
            read = max(position for _, position in held)
            for at in chance.sample(range(1, head + 1), head // 8):
                reason = "conflict" if at <= read else chance.choice(["conflict", "handler"])
                self._letter(category, at, "dead", reason)

    def _letter(self, category: str, at: int, state: str, reason: str) -> None:
        self._connection.execute(
            "INSERT INTO reservation.dead_letters (consumer, category, global_position, "
            "message_id, stream_name, type, state, reason, process, next_attempt_at) "
            "SELECT 'thing', %s, global_position, id, m.stream_name, m.type, %s, %s, 'p', "
            "CASE %s WHEN 'waiting' THEN now() END "
            "FROM message_store.messages m WHERE m.global_position = %s "
            "AND message_store.category(m.stream_name) = %s ON CONFLICT DO NOTHING",
            [category, state, reason, state, at, category],
        )

    def passes(self, number: int) -> None:
        """Record that some messages of another component were handled, not always rightly."""
        rows = self._connection.execute(
            "SELECT m.global_position, m.id FROM message_store.messages m "
            "WHERE message_store.category(m.stream_name) = 'other' ORDER BY m.global_position"
        ).fetchall()
        chance = self.chance
        for at, id_ in chance.sample(rows, min(number, len(rows))):
            message = id_ if chance.random() < 0.8 else uuid.UUID(int=chance.getrandbits(128))
            reason = chance.choice(["nothing", "duplicate", "written", "written"])
            follower = None
            if reason == "written":
                follower = chance.choice([id_, uuid.UUID(int=chance.getrandbits(128))])
            self._connection.execute(
                "INSERT INTO reservation.passes (consumer, category, global_position, message_id, "
                "reason, follower) VALUES ('thing', 'other', %s, %s, %s, %s) "
                "ON CONFLICT DO NOTHING",
                [at, message, reason, follower],
            )

    def corrections(self, number: int) -> None:
        """Correct some commands and copies, to what others of their type may say."""
        rows = self._connection.execute(
            "SELECT m.global_position, m.id, message_store.category(m.stream_name), m.type, m.data "
            "FROM message_store.messages m WHERE m.type IN ('Send', 'Count', 'Open') "
            "AND message_store.category(m.stream_name) IN ('thing:command', 'sent') "
            "ORDER BY m.global_position"
        ).fetchall()
        for at, id_, category, type_, data in self.chance.sample(rows, min(number, len(rows))):
            corrected = {**data, "amount": self.chance.choice(AMOUNTS)}
            self._connection.execute(
                "INSERT INTO reservation.dead_letters (consumer, category, global_position, "
                "message_id, stream_name, type, state, reason, process, data, correction) "
                "SELECT 'thing', %s, global_position, id, stream_name, type, 'handled', 'handler', "
                "'host:1', %s, 1 FROM message_store.messages WHERE global_position = %s "
                "ON CONFLICT (consumer, category, global_position) DO UPDATE "
                "SET data = excluded.data, correction = 1",
                [category, Jsonb(corrected), at],
            )
            if self.chance.random() < 0.7:  # sent again
                self._sent.append((at, str(id_), type_, corrected))

    def _write(
        self,
        stream_name: str,
        type_: str,
        data: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        id_: uuid.UUID | None = None,
    ) -> tuple[int, str]:
        position = self._places.get(stream_name, -1) + 1
        self._places[stream_name] = position
        at = self._free.pop(0) if self._is_behind and self._free else self._next()
        rows = self._connection.execute(
            "INSERT INTO message_store.messages (global_position, stream_name, position, type, "
            "data, metadata, id) VALUES (%s, %s, %s, %s, %s, %s, %s) "
            "ON CONFLICT DO NOTHING RETURNING global_position, id",
            [
                at,
                stream_name,
                position,
                type_,
                msgspec.json.encode(data).decode(),
                None if metadata is None else json.dumps(metadata),
                id_ or uuid.UUID(int=self.chance.getrandbits(128), version=4),
            ],
        ).fetchall()
        if type_ != "PseudoEvent" or data.get("initiation") is True:
            self._started.add(stream_name)
        if not rows:  # of an id that is taken
            self._places[stream_name] = position - 1
            return 0, ""
        return rows[0][0], str(rows[0][1])

    def _command(self) -> None:
        chance = self.chance
        type_ = chance.choice(["Send", "Send", "Send", "Count", "Count", "Open", "Open", "Other"])
        data = {"thingId": chance.choice(THINGS), "amount": chance.choice(AMOUNTS)}
        if type_ in ("Send", "Count"):
            data["key"] = chance.choice(KEYS[type_] if chance.random() < 0.85 else ODD_KEYS)
        if type_ == "Send":
            data["note"] = chance.choice(NOTES)
        if self._sent and chance.random() < 0.4:  # sent again
            _, _, type_, data = chance.choice(self._sent)
        data = {**data, **({"at": chance.randrange(99)} if chance.random() < 0.5 else {})}
        if type_ != "Send":
            data.pop("at", None)
        shape = self._shape(type_, data)
        at, id_ = self._write(f"thing:command-{chance.randrange(3)}", *shape)
        self._sent.append((at, id_, type_, data))
        self._causes.append((at, id_, data))

    def _touch(self) -> None:
        written, id_ = self.chance.choice(list(TOUCHES.items()))
        at, message = self._write("thing:command-1", "Touch", {"thingId": written})
        self._causes.append((at, message, {"thingId": id_}))

    def _shape(
        self, type_: str, data: dict[str, Any]
    ) -> tuple[str, dict[str, Any], dict[str, Any] | None]:
        """Return type, data and metadata of one of the shapes in which a command is stored."""
        chance, data = self.chance, dict(data)
        if data.get("amount") == 1 and chance.random() < 0.3:
            del data["amount"]
        if type_ != "Send":
            return type_, data, None
        note = data.pop("note", "")
        if chance.random() < 0.4:
            data |= {"remark": note} if note or chance.random() < 0.5 else {}
            metadata = chance.choice([None, {"schemaVersion": 1}, {"schemaVersion": "1"}])
            return chance.choice(["Post", "Send"]), data, metadata
        data |= {"note": note} if note or chance.random() < 0.3 else {}
        return chance.choice(["Post", "Send", "Send"]), data, {"schemaVersion": 2}

    def _reservation(self) -> None:
        if not self._sent:
            return
        at, _, type_, data = self.chance.choice(self._sent)
        if type_ not in ("Send", "Count"):
            return
        if self.chance.random() < 0.1:
            data = {**data, "amount": "tampered"}
        stream_name = f"sent-{data.get('thingId')}+{data.get('key')}"
        type_, stored, metadata = self._shape(type_, data)
        follows = at if self.chance.random() < 0.9 else float(at)
        metadata = {"causationMessageGlobalPosition": follows, **(metadata or {})}
        copy, id_ = self._write(stream_name, type_, stored, metadata)
        self._causes.append((copy, id_, data))

    def _foreign(self) -> None:
        """Write a message of another component."""
        chance = self.chance
        type_ = chance.choice(["Heard", "Heard", "Noticed", "Rung", "Rung", "Weighed", "Other"])
        leads_to: Any = chance.choice(["thing-1", "thing", "thing-2", "things-1", 5, None])
        field = "thingId" if type_ in ("Rung", "Weighed") else "about"
        written = id_ = chance.choice(["1", "2"])
        data: dict[str, Any] = {field: written}
        if type_ == "Weighed":
            written, id_ = chance.choice(list(WEIGHTS.items()))
            data = {field: msgspec.Raw(written.encode())}
        at, message = self._write(
            f"other-{chance.randrange(3)}", type_, data, {"correlationStreamName": leads_to}
        )
        self._causes.append((at, message, {"thingId": id_}))

    def _events(self) -> None:
        chance = self.chance
        at, cause, data = chance.choice(self._causes or [(10**6, str(uuid.UUID(int=1)), {})])
        entity = f"thing-{data.get('thingId')}"
        stream_name = chance.choice([entity, "thing-1", "thing-2"])
        # A number with decimals names no message, whatever they are.
        odd = chance.choice([str(at), None, 10**6, float(at), at + 0.5])
        follows: Any = chance.choice([at, at, at, at, odd])
        for ordinal in range(chance.choice([1, 1, 2, 3])):
            id_, made = None, "otherwise"
            if (
                cause
                and type(follows) is not float
                and follows in (at, str(at))
                and chance.random() < 0.7
            ):
                made = "derived"
                id_ = (
                    followed_id(cause, stream_name, ordinal)
                    if stream_name == entity or chance.random() < 0.5
                    else further_id(cause, entity, stream_name, ordinal)
                )
            metadata = {"causationMessageGlobalPosition": follows, "made": made}
            type_ = chance.choice(["Done", "Done", "Made", "Noted", "PseudoEvent"])
            written: dict[str, Any] = {"n": ordinal}
            if type_ == "PseudoEvent" and chance.random() < 0.5:  # of another command
                written = {"rejected": "Send", "reason": "no", **chance.choice(NOT_INITIAL)}
            self._write(stream_name, type_, written, metadata, id_)

    def _start(self) -> None:
        """Start an entity's stream, or reject the command that initiates, as its handler does.

        There may be nothing but pseudo events before.
        """
        opened = [sent for sent in self._sent if sent[2] == "Open" and "thingId" in sent[3]]
        if opened:
            at, cause, _, data = self.chance.choice(opened)
            stream_name = f"thing-{data['thingId']}"
            if stream_name not in self._started and data["thingId"] != "":
                metadata = {"causationMessageGlobalPosition": at, "made": "derived"}
                position = self._places.get(stream_name, -1) + 1
                if position:
                    metadata["localProperties"] = {"first": position}
                id_ = followed_id(cause, stream_name, 0)
                if self.chance.random() < 0.4:
                    rejection = {"rejected": "Open", "reason": "no", "initiation": True}
                    self._write(stream_name, "PseudoEvent", rejection, metadata, id_)
                else:
                    self._write(stream_name, "Opened", {}, metadata, id_)

    def _odd(self) -> None:
        """Write a message that belongs nowhere, or remove one that does."""
        chance = self.chance
        if chance.random() < 0.5:
            self._write(f"sent-{chance.randrange(3)}+odd", chance.choice(["Open", "Audit"]), {})
        elif chance.random() < 0.5:
            self._write("sent-3+orphan", "Send", {"thingId": "3", "key": "orphan"})
        else:
            self._write("elsewhere-1", "Send", {"thingId": "1", "key": "a"})
