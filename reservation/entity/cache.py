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
from reservation.store.client import MessageStore

# By streams, the last messages of each, in their order; all of them if the first is at position 0,
# or if there are none.
LastEvents = Mapping[str, Sequence[StoredMessage]]

NONE_READ: LastEvents = MappingProxyType({})

# Events after which an entity is copied again. To copy it takes as long as to apply a few.
_EVENTS_A_COPY = 16


@dataclass(frozen=True, slots=True)
class _Copy:
    """A copy of an entity.

    Attributes:
        loaded: the copy.
        commits: how many commits there had been. Until the next one, it may hold what is not
            committed.
    """

    loaded: Loaded
    commits: int


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
        self._copies: dict[str, list[_Copy]] = {}  # two at most, the older first
        self._commits = 0

    def load(
        self, store: MessageStore, stream_names: Iterable[str], last: LastEvents = NONE_READ
    ) -> dict[str, Loaded]:
        """Return the entities of these streams as they are now, in two statements at most."""
        names = list(stream_names)
        known = {name: self._loaded.pop(name) for name in names if name in self._loaded}
        if self._snapshots is not None:
            known |= self._snapshots.read([name for name in names if name not in known])
        wanted = {name: known.get(name) or Loaded(self._make()) for name in names}
        positions = {name: loaded.version + 1 for name, loaded in wanted.items()}
        messages = _following(positions, last)
        entered = None
        for message in [*messages, *store.read_events(positions)]:
            if message.stream_name != entered:
                entered = message.stream_name
                self._entering(entered)
            loaded = wanted[message.stream_name]
            loaded.entity = self._projection.apply_stored(loaded.entity, message)
            loaded.version = message.position
            loaded.started = loaded.started or starts(message)
        for name, loaded in wanted.items():
            if loaded.version >= _EVENTS_A_COPY:
                self._copy(name, loaded)
        self._loaded.update(wanted)
        while len(self._loaded) > self._capacity:
            name, _ = self._loaded.popitem(last=False)
            self._copies.pop(name, None)
        return wanted

    def committed(self) -> None:
        """Note a commit, with which all is committed that was decided before the last `load`."""
        self._commits += 1

    def roll_back(self) -> None:
        """Forget what may not be committed.

        The copies that are kept hold what was committed before a later commit of this consumer. A
        server that has lost any of it has lost that commit too, and so the consumer's position,
        which is looked at before anything is written. Where this is called again before there is
        another commit, everything is forgotten.
        """
        self._loaded.clear()
        for name, copies in self._copies.items():
            known = [made.loaded for made in copies if made.commits < self._commits]
            if known:
                self._loaded[name] = known[-1]
        self._copies.clear()

    def clear(self) -> None:
        """Forget everything: the server may be another one, which lacks what was committed."""
        self._loaded.clear()
        self._copies.clear()

    def _copy(self, name: str, loaded: Loaded) -> None:
        """Copy an entity, if enough has happened since it was copied."""
        copies = self._copies.get(name, [])
        last = copies[-1] if copies else None
        if last is not None:
            if last.commits == self._commits:  # the one before is needed still
                return
            if loaded.version < last.loaded.version + _EVENTS_A_COPY:
                del copies[:-1]
                return
        entity = self._copied(loaded.entity)
        if entity is not None:
            made = replace(loaded, entity=entity)
            self._copies[name] = [*copies[-1:], _Copy(made, self._commits)]


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
