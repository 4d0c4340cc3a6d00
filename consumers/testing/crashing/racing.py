"""Two messages that two consumers handle at the same time, and what that must come to.

Consumers of different partitions run beside each other, so the messages of two entities may be
handled at the same time. The first consumer stops when its handler has returned, and goes on when
the second has committed or waits for a lock. What is stored must be what one of the two orders
gives.
"""

import itertools
from collections.abc import Iterator, Sequence

from consumers.testing.crashing.contents import Contents
from consumers.testing.crashing.databases import Copy
from consumers.testing.crashing.interpreters import PATIENCE, PythonProcess, RunResult
from consumers.testing.crashing.orders import Called, HandledStep, Order
from consumers.testing.crashing.report import CrashKitError
from reservation.component import Component
from reservation.errors import GroupError
from reservation.maintenance.entity_order import check_order
from reservation.messages.stream_name import cardinal_id, category
from reservation.postgres.connection import connect
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("consumers.testing.crashing.inside", "running.sql")

# Seconds between two looks at whether the second consumer waits for a lock.
_GLANCE = 0.02


class Race:
    """Two messages of a category that follow each other and are of two entities.

    Attributes:
        handlers: the names of their handlers.
    """

    def __init__(
        self, before: tuple[HandledStep, ...], name: str, ordinal: int, handlers: tuple[str, str]
    ) -> None:
        self.handlers = " and ".join(dict.fromkeys(handlers))
        self._before = before
        self._first = HandledStep(name, ordinal)
        self._second = HandledStep(name, ordinal + 1)
        self._name = name
        self._ordinal = ordinal

    def __str__(self) -> str:
        return (
            f"messages {self._ordinal + 1} and {self._ordinal + 2} of {self._name} handled at the "
            f"same time by two processes"
        )

    def in_order(self, address: str, *, swapped: bool) -> Order:
        """Return the order to handle them one after the other."""
        pair = (self._first, self._second)
        if swapped:
            pair = (self._beside(), self._first)
        return Order(address, steps=(*self._before, *pair))

    def run(self, database: Copy, interpreters: Sequence[PythonProcess]) -> None:
        """Handle them at the same time."""
        first, second = interpreters[0], interpreters[-1]
        pausing = HandledStep(self._name, self._ordinal, pauses=True)
        first.begin(Order(database.address, steps=(*self._before, pausing)))
        ran, other = RunResult(), RunResult()
        if first.follow(ran, PATIENCE):
            second.begin(Order(database.address, steps=(self._beside(),)))
            for _ in range(int(PATIENCE / _GLANCE)):
                second.follow(other, _GLANCE)
                if other.status is not None or database.waits():
                    break
            first.go_on()
            first.follow(ran, PATIENCE)
            if other.status is None:
                second.follow(other, PATIENCE)
        if ran.status is None:
            raise CrashKitError(f"{self} did not end")

    def _beside(self) -> HandledStep:
        return HandledStep(self._name, self._ordinal + 1, second=True)


def races(
    component: Component, categories: Sequence[str], contents: Contents, calls: Sequence[Called]
) -> Iterator[Race]:
    """Give each pair of messages that could be handled at the same time."""
    # What a handler only returns goes to the stream of its entity, which no other consumer has.
    handled = {call.place: call.handler for call in calls if call.statements or call.writes}
    before: tuple[HandledStep, ...] = ()
    for name in categories:
        messages = [one for one in contents.messages if category(one.stream_name) == name]
        for n, (one, other) in enumerate(itertools.pairwise(messages)):
            apart = cardinal_id(one.stream_name) != cardinal_id(other.stream_name)
            both = [handled.get((stored.stream_name, stored.position)) for stored in (one, other)]
            if apart and both[0] and both[1] and _may_be_parted(component, name):
                steps = tuple(HandledStep(name, ordinal) for ordinal in range(n))
                yield Race((*before, *steps), name, n, (both[0], both[1]))
        before += tuple(HandledStep(name, ordinal) for ordinal in range(len(messages)))


def finish(component: Component, database: Copy) -> None:
    """Leave to one consumer what two have handled."""
    with connect(database.address, autocommit=True) as connection:
        for query in ("give_back", "forget"):
            connection.execute(_QUERIES[query], {"consumer": component.name})


def _may_be_parted(component: Component, name: str) -> bool:
    try:
        check_order(component, name, 2)
    except GroupError:
        return False
    return True
