"""What is explored: two consumers with a strategy, three messages, and the effects they have."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from consumers.group.positions import HeldPartition, Positions
from reservation import Component, MessageStore
from reservation.errors import PositionLostError
from reservation.idempotence.strategy import Strategy
from reservation.postgres.error_translation import TO_BE_RETRIED
from reservation.strategies import (
    MessageIdInEvents,
    PositionInEvents,
    Processed,
    Revisions,
    StateBased,
)
from tests.apps.bank import new_batch
from tests.apps.idempotence import (
    PURSE,
    copied,
    effects,
    key_of,
    numbered,
    opened,
    purse,
    revised,
)
from tests.support.awaiting import awaiting
from tests.support.controls import deposit, open_, withdraw
from tests.support.explorer import Explorer
from tests.support.liveness import stuck

# A has no effect, because there is nothing to take yet; after B it would have one.
A, B, C = withdraw("a", "5"), deposit("b", "10"), withdraw("c", "5")


@dataclass(frozen=True)
class Case:
    """A strategy, and what it promises.

    Attributes:
        make: makes the component.
        sent: the three messages.
        effects: the events that they bring about, however often they come.
        shared: whether both consumers move one position, so that nothing comes again but after a
            kill; else each has its own, and every message comes to both.
        reserves: whether its commands are reserved.
    """

    make: Callable[[], Component]
    sent: tuple[Any, ...] = (A, B, C)
    effects: tuple[str, ...] = ("Deposited", "Withdrawn")
    shared: bool = False
    reserves: bool = False


REISSUED: dict[str, Any] = {"sent": (A, B, A), "effects": ("Deposited",)}
RESERVED: dict[str, Any] = {"reserves": True}
# The revisions are those that their sender drew, and C was drawn before B and comes late.
LATE = (numbered(A, 1), numbered(B, 3), numbered(C, 2))
CASES = {
    "processed": Case(lambda: purse(Processed())),
    "processed, key": Case(lambda: purse(Processed(key=key_of)), **REISSUED),
    "message id": Case(lambda: purse(MessageIdInEvents())),
    "revisions": Case(revised, LATE, ("Deposited",)),
    "states": Case(lambda: purse(StateBased("whole"))),
    "states, deltas": Case(lambda: purse(StateBased("delta"))),
    "states, shared": Case(lambda: purse(StateBased("whole")), shared=True),
    "sequence": Case(lambda: purse(PositionInEvents())),
    "sequence, pseudo events": Case(lambda: purse(PositionInEvents(pseudo_events=True))),
    "initiate": Case(opened, (open_(), B, open_()), ("Opened", "Deposited")),
    "reservation": Case(copied, **REISSUED, **RESERVED, shared=True),
    "reservation, sequence": Case(lambda: copied(PositionInEvents()), **REISSUED, **RESERVED),
    "reservation, message id": Case(lambda: copied(MessageIdInEvents()), **REISSUED, **RESERVED),
    "async, processed": Case(lambda: awaiting(purse(Processed()))),
    "async, message id": Case(lambda: awaiting(purse(MessageIdInEvents()))),
    "async, sequence": Case(lambda: awaiting(purse(PositionInEvents()))),
    "async, initiate": Case(
        lambda: awaiting(opened()), (open_(), B, open_()), ("Opened", "Deposited")
    ),
    "async, reservation": Case(lambda: awaiting(copied()), **REISSUED, **RESERVED, shared=True),
}


def consumer(
    component: Component, categories: list[str], name: str, size: int
) -> Callable[[Any], None]:
    """Return a function that takes the categories of a component to their ends."""

    def take(connection: Any, category: str) -> bool:
        connection.begin_afresh(category)
        rows = connection.execute(
            "SELECT position, epoch FROM reservation.positions"
            " WHERE (consumer, category) = (%s, %s)",
            [name, category],
        ).fetchall()
        positions = Positions(name, category, held=[HeldPartition(0, *rows[0])])
        batch, lost = new_batch(connection, component, category), False
        while True:
            try:
                result = batch.run(positions, size, careful=lost)
            except PositionLostError:
                return True
            except TO_BE_RETRIED as error:
                connection.begin_again(error)
                lost = True
                continue
            lost = False
            assert not result.counts["differing"], "a message was handled otherwise than at first"
            if result.read < size and not result.counts["reserved"]:
                return False

    def consume(connection: Any) -> None:
        for category in categories:
            while take(connection, category):
                pass

    return consume


def explorer(
    address: str, case: Case, *, kills: int, size: int, together: bool = False
) -> Explorer:
    names = ("one", "one" if case.shared else "two")
    categories = ["purse:command", *(["purseTransaction"] if case.reserves else [])]

    def prepare(connection: Any) -> None:
        for category in categories:
            for name in set(names):
                connection.execute(
                    "INSERT INTO reservation.positions (consumer, category, partition, epoch)"
                    " VALUES (%s, %s, 0, 1)",
                    [name, category],
                )
        MessageStore(connection).write(list(case.sent), PURSE)

    def check(connection: Any) -> None:
        found = effects(MessageStore(connection))
        assert found == list(case.effects), f"the effects are {found}"
        assert stuck(connection) == []

    first, second = (consumer(case.make(), categories, name, size) for name in names)
    return Explorer(address, names, (first, second), prepare, check, kills=kills, together=together)


@dataclass(frozen=True)
class Blind(Strategy):
    """A strategy that keeps its records, and lets everything through."""

    strategy: Any

    def declare(self, component: str, command: type, entity: type | None) -> None:
        self.strategy.declare(component, command, entity)

    def begin(self, *given: Any) -> Any:
        check = self.strategy.begin(*given)
        check.is_duplicate = lambda incoming: False
        return check


BLIND = {
    "processed": Case(lambda: purse(Blind(Processed()))),
    "message id": Case(lambda: purse(Blind(MessageIdInEvents()))),
    "revisions": Case(lambda: revised(Blind(Revisions())), LATE, ("Deposited",)),
    "sequence": Case(lambda: purse(Blind(PositionInEvents()))),
    "sequence, pseudo events": Case(lambda: purse(Blind(PositionInEvents(pseudo_events=True)))),
}
