"""Entities kept between batches, so that only what is new in their streams is read again.

What is decided on an entity changes it before that is committed. So an entity is copied now and
then. When a transaction is rolled back, the entity goes back to its copy, and only the events after
that are read again. An entity that cannot be changed is its own copy. (Source: checkpoints, as
databases recover from them.)
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from reservation.entity.projection import Loaded, Projection
from reservation.entity.snapshots import Snapshots
from reservation.messages.message import StoredMessage
from reservation.messages.pseudo_event import starts
from reservation.store.statements import Statement, read_streams

# By streams, the last messages of each, in their order; all of them if the first is at position 0,
# or if there are none.
LastEvents = Mapping[str, Sequence[StoredMessage]]

NONE_READ: LastEvents = MappingProxyType({})

# Events after which an entity is copied again. To copy it takes as long as to apply a few.
_EVENTS_A_COPY = 16


@dataclass(frozen=True, slots=True)
class Loading:
    """Entities of which some events are still to be read.

    Attributes:
        reading: what reads them; None if there are none.
        finish: applies them, and returns the entities by their streams.
    """

    reading: Statement[list[StoredMessage]] | None
    finish: Callable[[Iterable[StoredMessage]], dict[str, Loaded]]


class EntityCache:
    """The entities most recently used, up to a number, projected from their streams."""

    def __init__(
        self,
        make: Callable[[], object],
        projection: Projection,
        *,
        capacity: int = 10_000,
        snapshots: Snapshots | None = None,
        copied: Callable[[object], object | None] = lambda _: None,
        entering: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._make = make
        self._projection = projection
        self._capacity = capacity
        self._snapshots = snapshots
        self._copied = copied
        self._entering = entering
        self._loaded: OrderedDict[str, Loaded] = OrderedDict()
        self._copies: dict[str, Loaded] = {}
        self._made: dict[str, Loaded] = {}  # copies of what is to be committed next
        self._has_failed = False

    def load(
        self,
        stream_names: Iterable[str],
        last: LastEvents = NONE_READ,
        *,
        committed: bool = True,
    ) -> Loading:
        """Begin to load the entities of these streams as they are now; snapshots are read at once.

        Some may have been changed by what is not committed yet.
        """
        names = list(stream_names)
        known = {name: self._loaded.pop(name) for name in names if name in self._loaded}
        if self._snapshots is not None:
            known |= self._snapshots.read([name for name in names if name not in known])
        wanted = {name: known.get(name) or Loaded(self._make()) for name in names}
        positions = {name: loaded.version + 1 for name, loaded in wanted.items()}
        messages = _following(positions, last)

        def finish(others: Iterable[StoredMessage]) -> dict[str, Loaded]:
            self._apply(wanted, [*messages, *others])
            self._keep(wanted, committed=committed)
            return wanted

        return Loading(read_streams(positions) if positions else None, finish)

    def _apply(self, wanted: Mapping[str, Loaded], messages: Iterable[StoredMessage]) -> None:
        """Apply events to their entities."""
        entered = None
        for message in messages:
            if message.stream_name != entered:
                entered = message.stream_name
                self._entering(entered)
            loaded = wanted[message.stream_name]
            loaded.entity = self._projection.apply_stored(loaded.entity, message)
            loaded.version = message.position
            loaded.started = loaded.started or starts(message)

    def _keep(self, wanted: Mapping[str, Loaded], *, committed: bool) -> None:
        """Keep entities, and a copy of those of which one is due."""
        for name, loaded in wanted.items():
            if loaded.version >= _EVENTS_A_COPY:
                self._copy(name, loaded, self._copies if committed else self._made)
        self._loaded.update(wanted)
        while len(self._loaded) > self._capacity:
            name, _ = self._loaded.popitem(last=False)
            self._copies.pop(name, None)
            self._made.pop(name, None)

    def committed(self) -> None:
        """Note that what was decided on the entities is committed."""
        self._copies.update(self._made)
        self._made.clear()
        self._has_failed = False

    def roll_back(self) -> None:
        """Take entities back to their copies, which hold what was committed, and forget the others.

        Where an attempt fails with the copies too, everything is forgotten: the log may be another.
        """
        self._loaded.clear()
        if not self._has_failed:
            self._loaded.update(self._copies)
        self._copies.clear()
        self._made.clear()
        self._has_failed = True

    def clear(self) -> None:
        """Forget everything: the server may be another one, which lacks what was committed."""
        self._loaded.clear()
        self._copies.clear()
        self._made.clear()

    def _copy(self, name: str, loaded: Loaded, copies: dict[str, Loaded]) -> None:
        """Copy an entity as it is, if enough has happened since it was copied."""
        last = self._copies.get(name)
        if last is not None and loaded.version < last.version + _EVENTS_A_COPY:
            return
        entity = self._copied(loaded.entity)
        if entity is not None:
            copies[name] = replace(loaded, entity=entity)


def _following(positions: dict[str, int], last: LastEvents) -> list[StoredMessage]:
    """Return the messages from these positions on, and drop the streams of which they are all."""
    messages: list[StoredMessage] = []
    for name, events in last.items():
        start = positions.get(name)
        if start is None or (events and events[0].position > start):
            continue
        del positions[name]
        messages += [event for event in events if event.position >= start]
    return messages
