"""Entities stored as snapshots, so that a long stream is not read again from its beginning.

A snapshot is ignored if other code made it, if it cannot be read, or if its last event is not in
its stream; that is compared by id, so that a replaced store is recognized. The entity is then
projected from its events. A snapshot is written in the transaction that writes those events.
(Source: the entity snapshots of Eventide's entity store.)
"""

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from psycopg import Connection

from reservation.entity.projection import Loaded, Projection
from reservation.errors import DeclarationError
from reservation.postgres.arrays import IntArray, JsonArray, TextArray, fetch_all
from reservation.postgres.error_translation import translation
from reservation.postgres.exchange.request import Request
from reservation.postgres.queries import load_queries
from reservation.serialization import codec
from reservation.serialization.fields import is_message, is_message_class, state_of
from reservation.serialization.struct_types import twin

_QUERIES = load_queries("reservation.entity")


@dataclass(frozen=True, slots=True)
class Snapshots:
    """The snapshots of one component's entities.

    Attributes:
        connection: in the transaction that reads the entities and writes their events.
        entity: the entity's class.
        every: how many events there are between two snapshots of an entity, at least.
        revision: that of the code; snapshots of another revision are ignored.
    """

    connection: Connection[Any]
    entity: Any  # the component's own class
    every: int
    revision: str

    def read(self, stream_names: Collection[str]) -> dict[str, Loaded]:
        """Return the entities of those of these streams that have a snapshot, in one statement."""
        if not stream_names:
            return {}
        rows = fetch_all(
            self.connection, _QUERIES["read"], [TextArray(list(stream_names)), self.revision]
        )
        found = {}
        for name, position, data in rows:
            try:
                entity = codec.decode(self.entity, data)
            except Exception:  # noqa: BLE001, S112  a class may check itself as it likes
                continue
            found[name] = Loaded(entity, position, position, started=True)
        return found

    def writing(self, loaded: Mapping[str, Loaded]) -> tuple[list[Request], list[str]]:
        """Return what takes a snapshot of those entities that are due, and those without a form."""
        due = {name: entity for name, entity in loaded.items() if self._is_due(entity)}
        texts = {name: self._encode(entity.entity) for name, entity in due.items()}
        kept = {name: text for name, text in texts.items() if text is not None}
        requests = []
        if kept:
            positions = IntArray([due[name].version for name in kept])
            data = JsonArray(list(kept.values()))
            parameters = [TextArray(list(kept)), positions, self.revision, data]
            requests.append(Request(_QUERIES["write"], parameters, failed=translation))
        for entity in due.values():
            entity.snapshot = entity.version
        return requests, [name for name in due if name not in kept]

    def _is_due(self, loaded: Loaded) -> bool:
        return loaded.started and loaded.version - loaded.snapshot >= self.every

    def _encode(self, entity: object) -> str | None:
        """Return an entity as JSON, or None if it would not be the same when it is read again."""
        try:
            text = codec.encode(entity)
            again = codec.decode(self.entity, text)
            return text if _same(again, entity) else None
        except Exception:  # noqa: BLE001  whatever a class makes of its fields
            return None


def check_snapshots(component: str, entity: type | None, every: object, revision: object) -> None:
    """Make sure that snapshots can be kept of a component's entities."""
    if entity is None or not is_message_class(entity):
        name = "None" if entity is None else entity.__name__
        raise DeclarationError(
            f"{component}: a snapshot is of a dataclass, and the entity is {name}; decorate it "
            f"with @dataclass, make it a Struct, an attrs class or a Pydantic model, or leave "
            f"snapshot_every out"
        )
    for name, value in (("snapshot_every", every), ("snapshot_revision", revision)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise DeclarationError(f"{component}: {name} is a whole number from 1, not {value!r}")
    try:
        codec.prepare(entity)
        _schema(entity)
    except (TypeError, NameError) as error:
        raise DeclarationError(
            f"{component}: {entity.__name__} cannot be kept as a snapshot: {error}"
        ) from error


def code_revision(entity: type, projection: Projection, revision: int) -> str:
    """Return the revision of the code that makes a snapshot.

    It depends on the entity's fields, the types of the events, their upcasters, and a number. The
    code of the projectors, and of what upcasters call, is not part of it, so their author raises
    the number when that changes.
    """
    parts = [_schema(entity), projection.code()]
    text = json.dumps(parts, sort_keys=True, default=str)
    return f"{revision}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def _schema(entity: Any) -> dict[str, Any]:
    """Return the JSON schema of an entity, with all that is nested in it."""
    return msgspec.json.schema(twin(entity))


def _same(left: Any, right: Any) -> bool:
    """Return whether two values are the same in every part, and of the same types.

    A Decimal that comes back as a float may be equal to it, and is not the same.
    """
    if type(left) is not type(right):
        return False
    if is_message(left):
        return _same(state_of(left), state_of(right))
    if isinstance(left, dict):
        keys = {key: key for key in right}
        return len(left) == len(right) and all(
            key in keys and _same(key, keys[key]) and _same(value, right[key])
            for key, value in left.items()
        )
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, set | frozenset) and Counter(map(type, left)) != Counter(map(type, right)):
        return False
    return bool(left == right)
