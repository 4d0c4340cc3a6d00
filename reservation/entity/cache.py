"""Entities kept between batches, so that only what is new in their streams is read again."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from reservation.entity.projection import Projection
from reservation.store.client import MessageStore
from reservation.store.statements import NO_STREAM


@dataclass(slots=True)
class Loaded:
    """An entity and the version of its stream that it stands for.

    Attributes:
        entity: the projected state.
        version: the position of the last event in it, -1 if there is none.
    """

    entity: object
    version: int = NO_STREAM


class EntityCache:
    """The entities most recently used, up to a number, projected from their streams."""

    def __init__(
        self, make: Callable[[], object], projection: Projection, *, capacity: int = 10_000
    ) -> None:
        self._make = make
        self._projection = projection
        self._capacity = capacity
        self._loaded: OrderedDict[str, Loaded] = OrderedDict()

    def load(self, store: MessageStore, stream_names: Iterable[str]) -> dict[str, Loaded]:
        """Return the entities of these streams as they are now, read in one statement."""
        wanted = {name: self._take(name) for name in stream_names}
        positions = {name: loaded.version + 1 for name, loaded in wanted.items()}
        for message in store.read_streams(positions):
            loaded = wanted[message.stream_name]
            self._projection.apply_stored(loaded.entity, message)
            loaded.version = message.position
        self._loaded.update(wanted)
        while len(self._loaded) > self._capacity:
            self._loaded.popitem(last=False)
        return wanted

    def _take(self, stream_name: str) -> Loaded:
        if stream_name in self._loaded:
            return self._loaded.pop(stream_name)
        return Loaded(self._make())

    def clear(self) -> None:
        """Forget everything: after a rollback the entities hold what was never written."""
        self._loaded.clear()
