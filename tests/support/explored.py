"""What is explored: two consumers with a strategy, three messages, and the effects they have."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from consumers.batch.batch_runner import BatchRunner
from consumers.effects.blocking import ALL_OR_NOTHING, FailurePolicy
from consumers.failures.letters import DeadLetters
from consumers.failures.retries import Retries
from consumers.group.positions import HeldPartition, HeldPartitions
from consumers.loop.retrying.attempts import CountedAttempts
from consumers.loop.retrying.due_letters import DueLetters
from consumers.loop.retrying.letter_retry import Retrying
from consumers.runtime.context import ConsumerContext
from consumers.runtime.running_calls import RunningCalls
from consumers.runtime.stopping import Stop
from reservation import Component, MessageStore
from reservation.errors import PositionLostError
from reservation.idempotence.strategy import Strategy
from reservation.postgres.error_translation import TO_BE_RETRIED
from reservation.store.statements import Statement
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
from tests.support.awaiting import awaiting, outlasting
from tests.support.controls import deposit, open_, withdraw
from tests.support.explorer import Explorer
from tests.support.liveness import stuck
from tests.support.stored_positions import store_position

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
        impatient: whether no batch waits for its async calls; both move one position then.
    """

    make: Callable[[], Component]
    sent: tuple[Any, ...] = (A, B, C)
    effects: tuple[str, ...] = ("Deposited", "Withdrawn")
    shared: bool = False
    reserves: bool = False
    impatient: bool = False


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
# Each has several times as many statements, because its messages are letters meanwhile.
IMPATIENT = {
    "impatient": Case(
        lambda: awaiting(purse(None), later=outlasting), (B,), ("Deposited",), impatient=True
    ),
    "impatient, reissued": Case(
        lambda: awaiting(purse(Processed(key=key_of)), later=outlasting),
        (B, B),
        ("Deposited",),
        impatient=True,
    ),
}
STOP = Stop(takes_signals=False)


class Letters:
    """The letters of a consumer, which handles what its calls give once they have ended."""

    def __init__(
        self, connection: Any, component: Component, category: str, name: str, size: int
    ) -> None:
        self._connection = connection
        self._letters = DeadLetters(name, category)
        self._running = RunningCalls()
        self._running.loop.patience = 0.0
        context = ConsumerContext.of(connection, component, category)
        self.batch = BatchRunner(replace(context, running=self._running))
        self.blocked = self._letters.blocked(connection, [0], 1)
        self._due = DueLetters()
        self._retrying = Retrying(
            self._letters,
            self._due,
            Retries(component, category),
            self._repeat,
            CountedAttempts(),
            self._running,
            size,
        )

    def handle(self, positions: HeldPartitions) -> None:
        """Handle letters until none is open."""
        retry, connection = self.batch.retry_transaction, self._connection
        while self.blocked:
            if self._running:
                self._running.loop.wait((), float("inf"))
            self._due.soon()
            retried = self._retrying.run(connection, retry, positions, STOP)
            if retried.result is not None:
                self.blocked -= retried.result.freed
            elif not (retried.more or self._running):  # the other one has handled them
                self.blocked.clear()

    def close(self) -> None:
        self._running.loop.close()

    def _repeat(self, call: Callable[[bool], Any], stop: Stop) -> Any:
        lost = False
        while True:
            try:
                return call(lost)
            except TO_BE_RETRIED as error:
                self._connection.begin_again(error)
                lost = True


def consumer(
    component: Component, categories: list[str], name: str, size: int, *, impatient: bool = False
) -> Callable[[Any], None]:
    """Return a function that takes the categories of a component to their ends."""

    def take(connection: Any, category: str) -> bool:
        connection.begin_afresh(category)
        rows = connection.execute(
            "SELECT position, epoch FROM reservation.positions"
            " WHERE (consumer, category) = (%s, %s)",
            [name, category],
        ).fetchall()
        positions = HeldPartitions(name, category, held=[HeldPartition(0, *rows[0])])
        if not impatient:
            return go_on(connection, positions, new_batch(connection, component, category))
        with contextlib.closing(Letters(connection, component, category, name, size)) as letters:
            letters.handle(positions)
            return go_on(connection, positions, letters.batch, letters)

    def go_on(
        connection: Any,
        positions: HeldPartitions,
        batch: BatchRunner,
        letters: Letters | None = None,
    ) -> bool:
        lost = False
        policy = ALL_OR_NOTHING if letters is None else FailurePolicy(letters.blocked, stop=True)
        while True:
            try:
                result = next(batch.run(positions, size, recheck=lost, policy=policy))
                if letters is not None:
                    letters.blocked.update(result.blocked)
                    letters.handle(positions)
            except PositionLostError:
                return True
            except TO_BE_RETRIED as error:
                connection.begin_again(error)
                lost = True
                continue
            lost = False
            assert not result.counts["differing"], "a message was handled otherwise than at first"
            if result.read < size and not result.counts["reserved"] and not result.waits:
                return False

    def consume(connection: Any) -> None:
        for category in categories:
            while take(connection, category):
                pass

    return consume


def explorer(
    address: str, case: Case, *, kills: int, size: int, together: bool = False
) -> Explorer:
    # Letters are those of the component, so who has any has its positions too.
    own = case.make().name
    names = (own, own) if case.impatient else ("one", "one" if case.shared else "two")
    categories = ["purse:command", *(["purseTransaction"] if case.reserves else [])]

    def prepare(connection: Any) -> None:
        for category in categories:
            for name in set(names):
                store_position(connection, name, category)
        MessageStore(connection).write(list(case.sent), PURSE)

    def check(connection: Any) -> None:
        found = effects(MessageStore(connection))
        assert found == list(case.effects), f"the effects are {found}"
        assert stuck(connection) == []

    first, second = (
        consumer(case.make(), categories, name, size, impatient=case.impatient) for name in names
    )
    return Explorer(address, names, (first, second), prepare, check, kills=kills, together=together)


@dataclass(frozen=True)
class Blind(Strategy):
    """A strategy that keeps its records, and lets everything through."""

    strategy: Any

    def declare(self, component: str, command: type, entity: type | None) -> None:
        self.strategy.declare(component, command, entity)

    def look(self, *given: Any) -> Any:
        statement = self.strategy.look(*given)

        def check(rows: Any) -> Any:
            check = statement.read(rows)
            check.is_duplicate = lambda incoming: False
            return check

        return Statement(statement.query, statement.parameters, check)


BLIND = {
    "processed": Case(lambda: purse(Blind(Processed()))),
    "message id": Case(lambda: purse(Blind(MessageIdInEvents()))),
    "revisions": Case(lambda: revised(Blind(Revisions())), LATE, ("Deposited",)),
    "sequence": Case(lambda: purse(Blind(PositionInEvents()))),
    "sequence, pseudo events": Case(lambda: purse(Blind(PositionInEvents(pseudo_events=True)))),
}
