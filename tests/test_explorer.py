"""Two consumers, three messages and kills: every order of the statements has the same effects."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from consumers.group.positions import HeldPartition, Positions
from reservation import (
    Component,
    MessageIdInEvents,
    MessageStore,
    PositionInEvents,
    Processed,
    Revisions,
    StateBased,
)
from reservation.errors import PositionLostError
from reservation.idempotence.strategy import Strategy
from reservation.postgres.error_translation import TO_BE_RETRIED
from tests.awaiting import awaiting
from tests.bank import new_batch
from tests.controls import deposit, open_, withdraw
from tests.explorer import Explorer, Violation
from tests.idempotence import (
    PURSE,
    copied,
    effects,
    key_of,
    numbered,
    opened,
    purse,
    revised,
    within,
)

pytestmark = pytest.mark.slow

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
    """

    make: Callable[[], Component]
    sent: tuple[Any, ...] = (A, B, C)
    effects: tuple[str, ...] = ("Deposited", "Withdrawn")
    shared: bool = False


REISSUED: dict[str, Any] = {"sent": (A, B, A), "effects": ("Deposited",)}
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
    "reservation": Case(copied, **REISSUED, shared=True),
    "reservation, sequence": Case(lambda: copied(PositionInEvents()), **REISSUED),
    "reservation, message id": Case(lambda: copied(MessageIdInEvents()), **REISSUED),
    "one category": Case(within, **REISSUED, shared=True),
    "one category, message id": Case(lambda: within(MessageIdInEvents()), **REISSUED),
    "async, processed": Case(lambda: awaiting(purse(Processed()))),
    "async, message id": Case(lambda: awaiting(purse(MessageIdInEvents()))),
    "async, sequence": Case(lambda: awaiting(purse(PositionInEvents()))),
    "async, initiate": Case(
        lambda: awaiting(opened()), (open_(), B, open_()), ("Opened", "Deposited")
    ),
    "async, reservation": Case(lambda: awaiting(copied()), **REISSUED, shared=True),
}


def consumer(component: Component, name: str, size: int) -> Callable[[Any], None]:
    """Return a function that takes every category of a component to its end."""

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
        for category in (component.command_category, *component.reservation_categories):
            while take(connection, category):
                pass

    return consume


def explorer(
    address: str, case: Case, *, kills: int, size: int, together: bool = False
) -> Explorer:
    names = ("one", "one" if case.shared else "two")
    component = case.make()

    def prepare(connection: Any) -> None:
        for category in (component.command_category, *component.reservation_categories):
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

    first, second = (consumer(case.make(), name, size) for name in names)
    return Explorer(address, names, (first, second), prepare, check, kills=kills, together=together)


# How many kills there are in the run of every day; the cases that are left out differ from these in
# what the exhaustive run is for.
DAILY = {
    "processed": 2,
    "processed, key": 2,
    "message id": 2,
    "revisions": 2,
    "states": 1,  # two transactions for each batch have ten times as many orders
    "sequence": 2,
    "initiate": 2,
    "reservation": 1,  # and so have two categories, or one read twice
    "one category": 1,
}


LONG = ["states"]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in DAILY],
)
def test_whatever_the_order_each_intent_takes_effect_once(database_url, record_property, name):
    """In every order of statements and with kills, each intent takes effect once."""
    explored = explorer(database_url, CASES[name], kills=DAILY[name], size=100).explore()
    record_property("explored", str(explored))
    assert explored.schedules > 1


@pytest.mark.parametrize("name", [name for name in DAILY if name not in LONG])
def test_the_same_holds_for_statements_that_are_sent_together(database_url, record_property, name):
    """The same holds in every order of the round trips of a consumer's process."""
    case = CASES[name]
    explored = explorer(database_url, case, kills=DAILY[name], size=100, together=True).explore()
    record_property("explored", str(explored))
    assert explored.schedules > 1


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("kills", "size"), [(2, 100), (1, 1)])
@pytest.mark.parametrize("name", CASES)
def test_with_two_kills_or_batches_of_one_message(database_url, record_property, name, kills, size):
    """The same holds with two kills or small batches, which takes too long for every run."""
    explored = explorer(database_url, CASES[name], kills=kills, size=size).explore()
    record_property("explored", str(explored))
    assert explored.schedules > 1


@pytest.mark.parametrize("name", ["none", "reservation", "one category"])
def test_a_message_that_takes_effect_late_is_found(database_url, name):
    """Without a strategy the explorer finds a message that takes effect late."""
    make = {"none": purse, "reservation": copied, "one category": within}[name]
    with pytest.raises(Violation, match=r"the effects are .*'Withdrawn'"):
        explorer(database_url, Case(make, **REISSUED), kills=0, size=1).explore()


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


@pytest.mark.parametrize("name", BLIND)
def test_a_strategy_that_recognizes_nothing_is_found(database_url, name):
    """The explorer finds a strategy that recognizes nothing, despite deterministic event ids."""
    with pytest.raises(Violation, match=r"the effects are|nobody in its way"):
        explorer(database_url, BLIND[name], kills=0, size=100).explore()
