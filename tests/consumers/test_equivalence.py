"""The same history leaves the same behind, whichever strategy a component uses.

A history is what senders, the network and processes may do: commands are sent, sent again under the
same id or another, read again, and consumers work on them in batches of any size and die at any
statement that writes. What must come of it is what comes of the commands alone, each once, in the
order in which they came first. Which of them a strategy takes for the same, and which it discards,
is a part of what it is.
"""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from bank.messages import Open, Withdraw
from reservation import Component, MessageStore, Write
from reservation.errors import StoreError
from reservation.strategies import MessageIdInEvents, PositionInEvents, Processed, StateBased
from tests.apps.bank import drain
from tests.apps.idempotence import copied, empty, key_of, numbered, opened, purse, revised
from tests.consumers.builders import Killer, case
from tests.support.awaiting import awaiting
from tests.support.controls import deposit, open_, withdraw

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
            If not, positions are not set back.
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
    "initiate": OPENING,
    "sequence": Case(lambda: purse(PositionInEvents(pseudo_events=True))),
    "reservation": Case(copied, by_key, twice=False),
    "reservation, message id": Case(lambda: copied(MessageIdInEvents()), by_key),
    "reservation, sequence": Case(lambda: copied(PositionInEvents(pseudo_events=True)), by_key),
    "async, processed": Case(lambda: awaiting(purse(Processed()))),
    "async, processed, key": Case(lambda: awaiting(purse(Processed(key=key_of))), by_key),
    "async, revisions": Case(lambda: awaiting(revised()), by_key, intent=numbered_intent),
    "async, initiate": Case(lambda: awaiting(opened()), opening, intent=opening_intent),
    "async, reservation": Case(lambda: awaiting(copied()), by_key, twice=False),
}

# Steps: an intent is sent (its number, under its own id or a new one), positions are set back (by
# so many messages), or consumers take all in batches (of so many messages), and die at a statement
# that writes; 0 for none.
SEND, AGAIN, RUN = "send", "again", "run"


class World:
    """A database, and what was sent."""

    def __init__(self, connection: Any, case: Case, killer: Killer | None = None) -> None:
        self.connection, self.killer, self.case = connection, killer, case
        self.store = MessageStore(connection)
        self.came: list[Sent] = []
        self.sent: dict[int, tuple[Sent, uuid.UUID]] = {}
        self.kill(0)
        empty(connection)

    def kill(self, at: int) -> None:
        """Have the next consumers die at a statement; 0 for none."""
        if self.killer is not None:
            self.killer.set(at)

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
        if self.case.twice:
            self.connection.execute(
                "UPDATE reservation.moves p SET message_id = NULL, position = coalesce(("
                " SELECT min(global_position) - 1 FROM ("
                "  SELECT m.global_position FROM message_store.messages m"
                "  WHERE message_store.category(m.stream_name) = p.category"
                "   AND m.global_position <= p.position"
                "  ORDER BY 1 DESC LIMIT %s) AS last), 0)",
                [back],
            )

    def run(self, size: int, at: int = 0) -> None:
        """Let consumers take everything in batches of a size, and die at a statement."""
        self.kill(at)
        try:
            assert not drain(self.connection, self.case.make(), batch_size=size).counts["dead"]
        except StoreError:  # which a process that died sees too, on its way out
            assert at
        self.kill(0)

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


def played(world: World, history: Any) -> dict[str, list[Any]]:
    """Return what a history leaves behind, having checked that the strategy holds."""
    for what, *how in history:
        {SEND: world.send, AGAIN: world.again, RUN: world.run}[what](*how)
    world.run(100)
    assert world.left() == world.expected()
    return world.left()


BY_ID = {
    "processed",
    "message id",
    "states",
    "states, deltas",
    "initiate",
    "sequence",
    "async, processed",
    "async, initiate",
}


def test_a_history_leaves_behind_what_its_commands_do_each_once(connection):
    """Each command has its effect once, whatever was repeated and wherever a process died.

    Strategies differ in reissues under another id, and in messages that come late.
    """
    killer = Killer(connection)
    for n, name in enumerate(CASES):
        history = [
            (SEND, 0, False),
            (SEND, 0, True),
            (SEND, 0, False),
            (SEND, 3, False),
            (SEND, 1, False),
            (SEND, 2, False),  # takes more than there is
            (RUN, 1 + n % 4, 1 + n % 8),
            (SEND, 4, False),  # now it would be sufficient
            (RUN, 4),
            (AGAIN, 6),
        ]
        with case(name):
            left = played(World(connection, CASES[name], killer), history)
            # A key or a revision recognizes a reissue under another id; others do not. A message
            # without effect has none when it is read again, though the state would allow one.
            assert left["0"] == ([1, 1, 5] if name in BY_ID else [1, 5])
            # Only revisions discard a message that arrives after a later one.
            assert left["1"] == ([4] if name == "revisions, late" else [4, 2])


def test_a_command_that_opens_an_entity_is_recognized_by_the_entity(connection):
    """A command that opens an entity is recognized under any id, unlike later commands."""
    send = [(SEND, 6, False), (SEND, 6, True), (SEND, 0, False), (SEND, 6, True), (SEND, 0, True)]
    assert played(World(connection, OPENING), send) == {"0": [OPENED, 1, 1]}
