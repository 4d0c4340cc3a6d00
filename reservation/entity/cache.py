"""Entities kept between batches, so that only what is new in their streams is read again."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
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


class EntityCache:
    """The entities most recently used, up to a number, projected from their streams."""

    def __init__(
        self,
        make: Callable[[], object],
        projection: Projection,
        *,
        capacity: int = 10_000,
        snapshots: Snapshots | None = None,
        entering: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Begin with none.

        Args:
            make: makes an entity before its first event.
            projection: applies its events to it.
            capacity: how many to keep.
            snapshots: where an entity is looked for that is not kept here, if anywhere.
            entering: called with the stream whose events are applied next.
        """
        self._make = make
        self._projection = projection
        self._capacity = capacity
        self._snapshots = snapshots
        self._entering = entering
        self._loaded: OrderedDict[str, Loaded] = OrderedDict()

    def load(
        self, store: MessageStore, stream_names: Iterable[str], last: LastEvents = NONE_READ
    ) -> dict[str, Loaded]:
        """Return the entities of these streams as they are now, in two statements at most.

        Args:
            store: where they are read from.
            stream_names: the streams.
            last: what was read of some of them already, in the same transaction.
        """
        names = list(stream_names)
        known = {name: self._loaded.pop(name) for name in names if name in self._loaded}
        if self._snapshots is not None:
            known |= self._snapshots.read([name for name in names if name not in known])
        wanted = {name: known.get(name) or Loaded(self._make()) for name in names}
        positions = {name: loaded.version + 1 for name, loaded in wanted.items()}
        messages = _following(positions, last)
        entered = None
        for message in [*messages, *store.read_streams(positions)]:
            if message.stream_name != entered:
                entered = message.stream_name
                self._entering(entered)
            loaded = wanted[message.stream_name]
            self._projection.apply_stored(loaded.entity, message)
            loaded.version = message.position
            loaded.started = loaded.started or starts(message)
        self._loaded.update(wanted)
        while len(self._loaded) > self._capacity:
            self._loaded.popitem(last=False)
        return wanted

    def clear(self) -> None:
        """Forget everything: after a rollback the entities hold what was never written."""
        self._loaded.clear()


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
