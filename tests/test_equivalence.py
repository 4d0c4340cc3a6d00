"""The same history leaves the same behind, whichever strategy a component uses.

A history is what senders, the network and processes may do: commands are sent, sent again under the
same id or another, read again, and two consumers work on them in turns and die at any statement.
What must come of it is what comes of the commands alone, each once, in the order in which they came
first. Which of them a strategy takes for the same, and which it discards, is a part of what it is.
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

from bank.messages import Open, Withdraw
from consumers.batch.batch import Batch
from consumers.batch.looking_ahead import LookingAhead
from consumers.group.positions import HeldPartition, Positions
from reservation import (
    Component,
    MessageIdInEvents,
    MessageStore,
    PositionInEvents,
    Processed,
    StateBased,
    Write,
)
from reservation.errors import LockTimeoutError, PositionLostError, StoreError
from reservation.postgres.error_translation import TO_BE_RETRIED
from reservation.postgres.exchange.keeping_connection import KeepingConnection
from tests.awaiting import awaiting
from tests.bank import new_batch
from tests.controls import deposit, open_, withdraw
from tests.idempotence import (
    copied,
    empty,
    key_of,
    numbered,
    opened,
    purse,
    revised,
    within,
)

pytestmark = pytest.mark.slow

COMMANDS = "purse:command"


@dataclass(frozen=True)
class Sent:
    """A stored message: its intent, and the revision that its sender gave it."""

    number: int
    revision: int


def intent(sent: Sent) -> Any:
    """Return the command of an intent: every third takes, from one of two entities."""
    number = sent.number
    account, amount = str(number % 2), str(1 + number)
    if number % 3 == 2:
        return withdraw(f"k{number}", amount, account=account)
    return deposit(f"k{number}", amount, account=account)


def numbered_intent(sent: Sent) -> Any:
    """Return the same with its revision, from one of two senders."""
    return numbered(intent(sent), sent.revision, str(sent.number // 4))


def opening_intent(sent: Sent) -> Any:
    """Return the same, but that the last two open an entity each."""
    return open_(str(sent.number % 2)) if sent.number > 5 else intent(sent)


# Which of the messages take effect, of all that were stored, in their order.
Taken = Callable[[list[Sent]], list[Sent]]


def each(came: list[Sent]) -> list[Sent]:
    """Take every message, because one under another id is another."""
    return came


def by_key(came: list[Sent]) -> list[Sent]:
    """Take the first of each intent."""
    return list({message.number: message for message in came}.values())


def newer(came: list[Sent]) -> list[Sent]:
    """Take what is newer than all that came before it, by entity and source."""
    taken, last = [], dict[tuple[str, str], int]()
    for message in came:
        command = numbered_intent(message)
        line = (command.account_id, command.source)
        if message.revision > last.get(line, -1):
            last[line] = message.revision
            taken.append(message)
    return taken


def opening(came: list[Sent]) -> list[Sent]:
    """Take every message but one that opens an entity that is open."""
    taken: list[Sent] = []
    for message in came:
        begun = any(other.number % 2 == message.number % 2 for other in effective(taken, OPENING))
        if not (isinstance(opening_intent(message), Open) and begun):
            taken.append(message)
    return taken


@dataclass(frozen=True)
class Case:
    """A strategy, and what it covers.

    Attributes:
        make: makes the component.
        taken: which messages take effect.
        twice: whether a message that is read again is known again, also where it had no effect.
            If not, positions are not set back, and the consumers share them.
        intent: makes the command.
        late: whether revisions are drawn long before the commands are sent, so that they come in
            another order.
    """

    make: Callable[[], Component]
    taken: Taken = each
    twice: bool = True
    intent: Callable[[Sent], Any] = intent
    late: bool = False


OPENING = Case(opened, opening, intent=opening_intent)
CASES = {
    "processed": Case(lambda: purse(Processed())),
    "processed, key": Case(lambda: purse(Processed(key=key_of)), by_key),
    "message id": Case(lambda: purse(MessageIdInEvents())),
    "revisions": Case(revised, by_key, intent=numbered_intent),
    "revisions, late": Case(revised, newer, intent=numbered_intent, late=True),
    "states": Case(lambda: purse(StateBased("whole"))),
    "states, deltas": Case(lambda: purse(StateBased("delta"))),
    "states, shared": Case(lambda: purse(StateBased("whole")), twice=False),
    "initiate": OPENING,
    "sequence": Case(lambda: purse(PositionInEvents(pseudo_events=True))),
    "reservation": Case(copied, by_key, twice=False),
    "reservation, message id": Case(lambda: copied(MessageIdInEvents()), by_key),
    "reservation, sequence": Case(lambda: copied(PositionInEvents(pseudo_events=True)), by_key),
    "one category": Case(within, by_key, twice=False),
    "one category, message id": Case(lambda: within(MessageIdInEvents()), by_key),
    "async, processed": Case(lambda: awaiting(purse(Processed()))),
    "async, processed, key": Case(lambda: awaiting(purse(Processed(key=key_of))), by_key),
    "async, revisions": Case(lambda: awaiting(revised()), by_key, intent=numbered_intent),
    "async, initiate": Case(lambda: awaiting(opened()), opening, intent=opening_intent),
    "async, reservation": Case(lambda: awaiting(copied()), by_key, twice=False),
}

# Those whose consumers decide ahead.
AHEAD = ("reservation", "one category")

# Steps: an intent is sent (its number, under its own id or a new one), positions are set
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
        st.sampled_from([0, 0, *range(1, 15)]),
        st.sampled_from(["die", "other"]),
    ),
)
histories = st.lists(events, min_size=4, max_size=24)


class _Killed(BaseException):
    """The process dies."""


class _Cutting(psycopg.Connection[Any]):
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


class Cut(_Cutting):
    """Such a connection of psycopg's own."""


class KeepingCut(_Cutting, KeepingConnection):
    """Such a connection as consumers have it."""


class World:
    """A database, two consumers, and what was sent."""

    def __init__(self, address: str, case: Case, *, ahead: bool = False) -> None:
        self.address, self.case, self.make = address, case, case.make
        self.ahead = ahead
        self.control = psycopg.connect(address, autocommit=True)
        self.store = MessageStore(self.control)
        component = case.make()
        self.categories = [component.command_category, *component.reservation_categories]
        self.came: list[Sent] = []
        self.sent: dict[int, tuple[Sent, uuid.UUID]] = {}
        empty(self.control)
        names = ("one", "two") if case.twice else ("one", "one")
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

    def _start(self, name: str) -> tuple[_Cutting, str, dict[str, Batch]]:
        connection = (KeepingCut if self.ahead else Cut).connect(
            self.address,
            autocommit=True,
            prepare_threshold=None,
            options="-clock_timeout=40ms -csynchronous_commit=off",
        )
        component = self.make()
        batches = {
            category: new_batch(connection, component, category) for category in self.categories
        }
        return connection, name, batches

    def send(self, number: int, anew: bool) -> None:
        """Send an intent, under the id that it had before or another."""
        known = number in self.sent
        revision = number if self.case.late else len(self.sent)
        sent, id_ = self.sent.setdefault(number, (Sent(number, revision), uuid.uuid4()))
        if not known or anew:
            self.came.append(sent)
        if known and anew:
            id_ = uuid.uuid4()
        command = self.case.intent(sent)
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
        """Let a consumer run a batch of each category; return whether it did anything."""
        connection, name, batches = self.consumers[n]

        def die() -> None:
            connection.close()
            raise _Killed

        connection.left = at
        connection.happens = die if how == "die" else lambda: self.run(1 - n, size) and None
        moved = False
        try:
            for category, batch in batches.items():
                # So that there is more to read behind a batch of copies.
                limit = 1 if self.ahead and category != self.categories[0] else size
                moved = self._batch(connection, name, category, batch, limit) or moved
        except (_Killed, StoreError):  # which a process that died sees too, on its way out
            if not connection.closed:
                raise
            self.consumers[n] = self._start(name)
            return True
        connection.left = 0
        return moved

    def _batch(
        self, connection: _Cutting, name: str, category: str, batch: Batch, size: int
    ) -> bool:
        careful = False
        for _ in range(5):
            position = self.control.execute(
                "SELECT position FROM reservation.positions WHERE (consumer, category) = (%s, %s)",
                [name, category],
            ).fetchall()[0][0]
            try:
                positions = Positions(name, category, held=[HeldPartition(0, position, 1)])
                result = batch.run(positions, size, careful=careful, looks_ahead=self.ahead)
            except (LockTimeoutError, PositionLostError):
                return True
            except TO_BE_RETRIED:
                careful = True
            else:
                assert not result.counts["differing"]
                return result.moved
        raise AssertionError("a batch does not get through")

    def finish(self) -> None:
        """Let both run to their ends."""
        while self.run(0, 100) or self.run(1, 100):
            pass

    def left(self) -> dict[str, list[Any]]:
        """Return what came of it: what was added and taken, and who opened it, by entity."""
        found: dict[str, list[Any]] = {}
        for event in self.store.read_category("purse"):
            if event.type == "PseudoEvent":
                continue
            done = found.setdefault(event.stream_name.partition("-")[2], [])
            if event.type == "Opened":
                done.append(OPENED)
            else:
                sign = {"Deposited": 1, "Withdrawn": -1}[event.type]
                done.append(sign * event.decode(Amount).amount)
        return found

    def expected(self) -> dict[str, list[Any]]:
        """Return the effects of the messages that take effect."""
        found: dict[str, list[Any]] = {}
        for message in effective(self.case.taken(self.came), self.case):
            command = self.case.intent(message)
            found.setdefault(command.account_id, []).append(amount(command))
        return found


@dataclass(frozen=True)
class Amount:
    amount: Decimal


OPENED = "opened"


def amount(command: Any) -> Any:
    """Return what a command adds or, as a negative amount, takes."""
    if isinstance(command, Open):
        return OPENED
    return -command.amount if isinstance(command, Withdraw) else command.amount


def effective(taken: list[Sent], case: Case) -> list[Sent]:
    """Return the messages with an effect: nothing is taken without a sufficient balance."""
    balances = {"0": Decimal(0), "1": Decimal(0)}
    found = []
    for message in taken:
        command = case.intent(message)
        change = 0 if isinstance(command, Open) else amount(command)
        if balances[command.account_id] + change >= 0:
            balances[command.account_id] += change
            found.append(message)
    return found


def play(address: str, case: Case, history: list[Any], *, ahead: bool = False) -> World:
    world = World(address, case, ahead=ahead)
    try:
        for what, *how in history:
            if what == AGAIN and not case.twice:
                continue
            {SEND: world.send, AGAIN: world.again, RUN: world.run}[what](*how)
        world.finish()
    except BaseException:
        world.close()
        raise
    return world


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=25)
@given(history=histories)
def test_a_history_leaves_behind_what_its_commands_do_each_once(database_url, name, history):
    """Each command has its effect once, whatever was repeated and whichever process died."""
    world = play(database_url, CASES[name], history)
    try:
        assert world.left() == world.expected()
    finally:
        world.close()


@pytest.mark.parametrize("name", [*AHEAD, "processed", "initiate"])
@settings(max_examples=50)
@given(history=histories)
def test_a_history_leaves_behind_the_same_where_consumers_decide_ahead(database_url, name, history):
    """So it is where the next batch is decided on before the last one is committed."""
    world = play(database_url, CASES[name], history, ahead=True)
    try:
        assert world.left() == world.expected()
    finally:
        world.close()


@pytest.mark.parametrize("name", AHEAD)
def test_consumers_decide_ahead_in_histories(database_url, name, monkeypatch):
    """The histories of the test before do have batches that are decided on ahead."""
    decide, decided = LookingAhead.decide, []

    def noted(looking_ahead, following, sent):
        decide(looking_ahead, following, sent)
        decided.append(looking_ahead.has_decided)

    monkeypatch.setattr(LookingAhead, "decide", noted)
    history = [*((SEND, number, False) for number in range(8)), *[(RUN, 0, 2, 0, "die")] * 5]
    world = play(database_url, CASES[name], history, ahead=True)
    try:
        assert world.left() == world.expected()
        assert any(decided)
    finally:
        world.close()


def left(address: str, name: str, *history: Any) -> dict[str, list[Any]]:
    """Return what a history leaves behind, having checked that the strategy holds."""
    world = play(address, CASES[name], list(history))
    try:
        assert world.left() == world.expected()
        return world.left()
    finally:
        world.close()


BY_ID = {
    "processed",
    "message id",
    "states",
    "states, deltas",
    "states, shared",
    "initiate",
    "sequence",
    "async, processed",
    "async, initiate",
}


@pytest.mark.parametrize("name", CASES)
def test_a_reissue_under_another_id_is_where_they_differ(database_url, name):
    """A key or a revision recognizes a reissue under another id; an id or a position does not."""
    found = left(database_url, name, (SEND, 0, False), (SEND, 0, True), (SEND, 0, False))
    assert found == {"0": [1, 1] if name in BY_ID else [1]}


def test_a_command_that_opens_an_entity_is_recognized_by_the_entity(database_url):
    """A command that opens an entity is recognized under any id, unlike later commands."""
    send = [(SEND, 6, False), (SEND, 6, True), (SEND, 0, False), (SEND, 6, True), (SEND, 0, True)]
    assert left(database_url, "initiate", *send) == {"0": [OPENED, 1, 1]}


@pytest.mark.parametrize("name", CASES)
def test_only_revisions_discard_a_late_message(database_url, name):
    """Only revisions discard a message that arrives after a later one."""
    found = left(database_url, name, (SEND, 3, False), (SEND, 1, False))
    assert found == {"1": [4] if name == "revisions, late" else [4, 2]}


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].twice])
def test_a_message_without_effect_has_none_when_redelivered(database_url, name):
    """A message without effect has none when read again, though the state would allow one."""
    takes, adds, everything = (SEND, 2, False), (SEND, 4, False), (RUN, 0, 4, 0, "die")
    found = left(database_url, name, takes, everything, adds, everything, (AGAIN, 6))
    assert found == {"0": [5]}
