"""The same history leaves the same behind, whichever way to be idempotent a component has.

A history is what senders, the network and processes may do: commands are sent, sent again under the
same id or another, read again, and two consumers work on them in turns and die at any statement.
What must come of it is what comes of the commands alone, each once, in the order in which they came
first.
"""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bank.messages import Deposit
from consumers.batch import Batch
from consumers.position import Held, Positions
from reservation import Component, MessageIdInEvents, MessageStore, Sequence, Write
from reservation.errors import LockTimeoutError, PositionLostError, StoreError
from reservation.store.errors import RUN_AGAIN
from tests.controls import deposit, withdraw
from tests.idempotence import copied, empty, purse, within

COMMANDS = "purse:command"


@dataclass(frozen=True)
class Way:
    """A way to be idempotent, and what it covers.

    Attributes:
        make: makes the component.
        by_key: whether the same intent under another id is known again.
        twice: whether a message that is read again is known again, also where it had no effect.
            If not, positions are not set back, and the consumers share them.
    """

    make: Callable[[], Component]
    by_key: bool = False
    twice: bool = True


WAYS = {
    "message id": Way(lambda: purse(MessageIdInEvents())),
    "sequence": Way(lambda: purse(Sequence(pseudo_events=True))),
    "reservation": Way(copied, by_key=True, twice=False),
    "reservation, message id": Way(lambda: copied(MessageIdInEvents()), by_key=True),
    "reservation, sequence": Way(lambda: copied(Sequence(pseudo_events=True)), by_key=True),
    "one category": Way(within, by_key=True, twice=False),
    "one category, message id": Way(lambda: within(MessageIdInEvents()), by_key=True),
}

# What happens: an intent is sent (its number, under its own id or a new one), positions are set
# back (by so many messages), or a consumer (of two) runs a batch (of so many messages) and dies at
# a statement, or lets the other run at it; 0 for neither.
SEND, AGAIN, RUN = "send", "again", "run"
numbers = st.integers(0, 7)
events = st.one_of(
    st.tuples(st.just(SEND), numbers, st.booleans()),
    st.tuples(st.just(AGAIN), st.integers(1, 6)),
    st.tuples(
        st.just(RUN),
        st.integers(0, 1),
        st.integers(1, 4),
        st.sampled_from([0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        st.sampled_from(["die", "other"]),
    ),
)
histories = st.lists(events, min_size=4, max_size=24)


def intent(number: int) -> Any:
    """Return the command of an intent: every third takes, from one of two entities."""
    account, amount = str(number % 2), str(1 + number)
    if number % 3 == 2:
        return withdraw(f"k{number}", amount, account=account)
    return deposit(f"k{number}", amount, account=account)


class _Killed(BaseException):
    """The process dies."""


class Cut(psycopg.Connection[Any]):
    """A connection on which something happens before the n-th statement."""

    left = 0
    happens: Callable[[], None] | None = None

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        """Send a statement and wait for its answer."""
        if self.left:
            self.left -= 1
            if not self.left and self.happens is not None:
                self.happens()
        return super().wait(*args, **kwargs)


class World:
    """A database, two consumers, and what was sent."""

    def __init__(self, address: str, way: Way) -> None:
        self.address, self.make = address, way.make
        self.control = psycopg.connect(address, autocommit=True)
        self.store = MessageStore(self.control)
        component = way.make()
        self.categories = [component.command_category, *component.reservation_categories]
        self.came: list[tuple[int, bool]] = []
        self.ids: dict[int, uuid.UUID] = {}
        empty(self.control)
        names = ("one", "two") if way.twice else ("one", "one")
        for name in set(names):
            for category in self.categories:
                self.control.execute(
                    "INSERT INTO reservation.positions (consumer, category, partition, epoch)"
                    " VALUES (%s, %s, 0, 1)",
                    [name, category],
                )
        self.consumers = [self._start(name) for name in names]

    def close(self) -> None:
        for connection, _, _ in self.consumers:
            connection.close()
        self.control.close()

    def _start(self, name: str) -> tuple[Cut, str, dict[str, Batch]]:
        connection = Cut.connect(
            self.address,
            autocommit=True,
            prepare_threshold=None,
            options="-clock_timeout=40ms -csynchronous_commit=off",
        )
        component = self.make()
        batches = {one: Batch(connection, component, one) for one in self.categories}
        return connection, name, batches

    def send(self, number: int, anew: bool) -> None:
        """Send an intent, under the id that it had before or another."""
        known = number in self.ids
        id_ = uuid.uuid4() if anew and known else self.ids.setdefault(number, uuid.uuid4())
        if not known or anew:
            self.came.append((number, known))
        command = intent(number)
        self.store.write_batch([Write(command, f"{COMMANDS}-{command.account_id}", id=id_)])

    def again(self, back: int) -> None:
        """Set every position back by some messages."""
        self.control.execute(
            "UPDATE reservation.positions p SET position = coalesce(("
            " SELECT min(global_position) - 1 FROM ("
            "  SELECT m.global_position FROM message_store.messages m"
            "  WHERE message_store.category(m.stream_name) = p.category"
            "   AND m.global_position <= p.position"
            "  ORDER BY 1 DESC LIMIT %s) AS last), 0)",
            [back],
        )

    def run(self, n: int, size: int, at: int = 0, how: str = "") -> bool:
        """Let a consumer run a batch of each category; tell whether it did anything."""
        connection, name, batches = self.consumers[n]

        def die() -> None:
            connection.close()
            raise _Killed

        connection.left = at
        connection.happens = die if how == "die" else lambda: self.run(1 - n, size) and None
        moved = False
        try:
            for category, batch in batches.items():
                moved = self._batch(connection, name, category, batch, size) or moved
        except (_Killed, StoreError):  # which a process that died sees too, on its way out
            if not connection.closed:
                raise
            self.consumers[n] = self._start(name)
            return True
        connection.left = 0
        return moved

    def _batch(self, connection: Cut, name: str, category: str, batch: Batch, size: int) -> bool:
        careful = False
        for _ in range(5):
            position = self.control.execute(
                "SELECT position FROM reservation.positions WHERE (consumer, category) = (%s, %s)",
                [name, category],
            ).fetchall()[0][0]
            try:
                held = [Held(0, position, 1)]
                return batch.run(Positions(name, category, held=held), size, careful=careful).moved
            except (LockTimeoutError, PositionLostError):
                return True
            except RUN_AGAIN:
                careful = True
        raise AssertionError("a batch does not get through")

    def finish(self) -> None:
        """Let both run to their ends."""
        while self.run(0, 100) or self.run(1, 100):
            pass

    def amounts(self) -> dict[str, list[Decimal]]:
        """Return what came of it: the amounts that were added and taken, by entity."""
        found: dict[str, Any] = {}
        for one in self.store.read_category("purse"):
            if one.type == "PseudoEvent":
                continue
            account, event = one.stream_name.partition("-")[2], one.decode(Amount)
            sign = {"Deposited": 1, "Withdrawn": -1}[one.type]
            found.setdefault(account, []).append(sign * event.amount)
        return found


@dataclass(frozen=True)
class Amount:
    amount: Decimal


def expected(came: list[tuple[int, bool]], by_key: bool) -> dict[str, list[Decimal]]:
    """Return what must come of commands, each once; under a new id it is another, unless by key."""
    found: dict[str, list[Decimal]] = {}
    for number, again in came:
        if again and by_key:
            continue
        command = intent(number)
        done = found.get(command.account_id, [])
        if isinstance(command, Deposit):
            found[command.account_id] = [*done, command.amount]
        elif sum(done) >= command.amount:
            found[command.account_id] = [*done, -command.amount]
    return found


def play(address: str, way: Way, history: list[Any]) -> World:
    world = World(address, way)
    try:
        for what, *how in history:
            if what == AGAIN and not way.twice:
                continue
            {SEND: world.send, AGAIN: world.again, RUN: world.run}[what](*how)
        world.finish()
    except BaseException:
        world.close()
        raise
    return world


@pytest.mark.parametrize("name", WAYS)
@settings(max_examples=40)
@given(history=histories)
def test_a_history_leaves_behind_what_its_commands_do_each_once(database_url, name, history):
    """Whatever was sent or read again, and whoever died when."""
    way = WAYS[name]
    world = play(database_url, way, history)
    try:
        assert world.amounts() == expected(world.came, way.by_key)
    finally:
        world.close()


REISSUE = [(SEND, 0, False), (SEND, 0, True), (SEND, 0, False)]


@pytest.mark.parametrize("name", WAYS)
def test_a_reissue_under_another_id_is_where_they_differ(database_url, name):
    """By its key it is known again, by its id or its position it is not."""
    world = play(database_url, WAYS[name], REISSUE)
    assert len(world.amounts()["0"]) == (1 if WAYS[name].by_key else 2)
    world.close()
