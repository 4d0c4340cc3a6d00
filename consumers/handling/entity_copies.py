"""The copies of entities that handlers get, and saying once what they cost."""

import time
from typing import TypeVar

from consumers.runtime.observability.logs import Log
from reservation.effects.deciding import copy_for
from reservation.messages.message import StoredMessage, printable

E = TypeVar("E")

# Seconds that a copy may take. What copies take beyond that is added up, and what they take less is
# subtracted, so that a pause of the process is forgotten.
SLOW = 0.001
_EXCESS = 0.1

HINT = (
    "keep what grows in a field that is annotated as a tuple, a frozenset or an immutables.Map of "
    "values that cannot change, which is not copied; or make the whole entity such a class"
)


class EntityCopies:
    """The copies that one consumer makes."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._excess = 0.0
        self._reported: set[type] = set()

    def of(self, entity: E, stream_name: str, message: StoredMessage) -> E:
        """Return the copy of an entity for the handler of a message; itself if it cannot change."""
        began = time.perf_counter()
        copy_of = copy_for(entity, message)
        seconds = time.perf_counter() - began
        self._excess = max(self._excess + seconds - SLOW, 0.0)
        if self._excess > _EXCESS:
            self._report(type(entity), stream_name, seconds)
        return copy_of

    def _report(self, class_: type, stream_name: str, seconds: float) -> None:
        self._excess = 0.0
        if class_ in self._reported:
            return
        self._reported.add(class_)
        self._log.warning(
            "entity_copies_slow",
            entity=class_.__name__,
            stream_name=printable(stream_name),
            milliseconds=round(seconds * 1000, 1),
            hint=HINT,
        )
