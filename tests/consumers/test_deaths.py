"""Messages that end their process: each death counts, whichever process tries next.

A projector that raises something other than an Exception ends the consumers as a kill does, so
each call of `drain` stands for a process.
"""

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import pytest

import consumers
from consumers import Crashed
from reservation import Component
from reservation.strategies import StateBased
from tests.apps.bank import address
from tests.consumers.builders import TILLS, Paid, Pay, Till, letters, pay, reasons


class End(BaseException):
    """Ends the process."""


@dataclass
class Total:
    amount: int = 0


class Deadly(Till):
    """A till whose process ends at the payments in `deadly`, after their handler was called."""

    def __init__(self, connection):
        super().__init__(connection)
        self.deadly = set()
        self.component = Component("till", entity=Total, id="till_id", attempts=2)
        self.component.handle(Pay, once=None)(self.handle)
        self.component.project(Paid)(self.project)

    def project(self, total, event):
        if event.pay_id in self.deadly:
            raise End("secret")

    def die(self, times=1, **options):
        """Let so many processes be ended, and return what the last said."""
        for _ in range(times):
            with pytest.raises(Crashed) as caught:
                consumers.drain(self.component, address(self.connection), **options)
        return str(caught.value)

    def survive(self, **options):
        """Start processes until one is not ended; return how many were."""
        deaths = 0
        while True:
            try:
                self.drain(**options)
            except Crashed:
                deaths += 1
            else:
                return deaths


@pytest.fixture
def till(connection):
    return Deadly(connection)


def test_a_message_that_ends_processes_is_given_up_after_its_attempts(connection, till, caplog):
    """The first death is that of the batch; only its entity waits then."""
    till.deadly = {"2a"}
    till.send("1a", "2a", "2b", "3a")
    said = till.die()
    assert said.startswith("While it handled Pay at till:command-1, global position 1")
    assert "was ended by End in Deadly.project (tests/consumers/test_deaths.py:" in said
    said = till.die(times=2)
    assert said.startswith("While it handled Pay at till:command-2, global position 2")
    assert "secret" not in said + caplog.text
    assert till.drain() == {"dead": 1, "parked": 1, "handled": 1}
    assert till.calls.count("2a") == 1 + 2
    assert reasons(connection) == [("dead", "process_died", 2), ("parked", "parked", 0)]
    assert till.paid() == ["1a", "3a"]


@pytest.mark.parametrize(
    ("before", "most", "deaths"),
    [(30, 2, {1 + 2}), (80, 3, {1 + 2, 2 + 2})],
    ids=["in the first batch", "in the second"],
)
def test_a_message_that_ends_the_process_costs_another_one_call_more(
    connection, till, before, most, deaths
):
    """Those before it in its batch are committed one by one by the next process.

    The second batch is called while the first is written. If the process ends before that one is
    committed, the next process commits it alone, and is ended by the second batch once more.
    """
    names = [f"{n}a" for n in range(before + 1)]
    behind = [f"{n}b" for n in range(before + 1, before + 50)]
    till.deadly = {names[-1]}
    till.store.write([pay(name) for name in [*names, *behind]], f"{TILLS}-x")
    assert till.survive(batch_size=50) in deaths
    counted = Counter(till.calls)
    assert max(counted[name] for name in names[:-1]) <= most
    assert {counted[name] for name in behind} == {1}
    assert till.paid() == [*names[:-1], *behind]
    assert reasons(connection) == [("dead", "process_died", 2)]


def test_a_process_that_dies_in_a_retry_is_counted_too(connection, till):
    """Letters before it are handled, and those behind it stay parked."""
    till.failing = {"1a"}
    till.send("1a", "1b", "1c")
    till.drain()
    till.failing, till.deadly = set(), {"1b"}
    till.retry()
    till.die(times=1 + 2)
    till.drain()
    assert till.states() == {"1a": "handled", "1b": "dead", "1c": "parked"}
    assert till.letter("1b")["reason"] == "process_died"
    till.deadly = set()
    till.retry()
    till.drain()
    assert till.paid() == ["1a", "1b", "1c"]


decoded = []


@dataclass(frozen=True)
class Seen(Pay):
    """A payment that is noted whenever it is decoded."""

    def __post_init__(self):
        decoded.append(self.pay_id)


@dataclass
class Fragile:
    """An entity whose constructor ends the process."""

    is_armed: ClassVar[bool] = False
    amount: int = 0

    def __post_init__(self):
        if self.is_armed:
            raise End


Seen.__name__ = "Pay"


@pytest.mark.parametrize(
    "how", [{"key": "pay_id"}, {"once": None}, {"once": StateBased()}], ids=["key", "none", "state"]
)
def test_a_message_that_ended_processes_is_given_up_undecoded(connection, how, monkeypatch):
    """No code of the component is called for it any more; its entity is read from its data."""
    till = Deadly(connection)
    till.component = Component("till", entity=Fragile, id="till_id", attempts=1)
    till.component.handle(Seen, **how)(till.handle)
    till.component.message(Paid)
    till.send("1a")
    monkeypatch.setattr(Fragile, "is_armed", True)
    till.die(times=1 + 1)
    decoded.clear()
    till.drain()
    assert till.calls == []
    # At each start, the names of reservations are compared with those of a sample of commands.
    assert decoded == [] or "key" in how
    (letter,) = letters(connection)
    assert (letter["reason"], letter["attempts"]) == ("process_died", 1)
    assert letter["entity"] == "till-1"
