"""Entities are what their streams make them, whatever fails between two batches."""

import contextlib
import random
from collections import Counter, defaultdict
from dataclasses import dataclass

import pytest

from bank.messages import Deposit
from reservation import Component
from reservation.errors import ExpectedVersionError, LockTimeoutError
from tests.apps.bank import drain
from tests.apps.once import redeliver
from tests.support import chance
from tests.support.controls import deposit


@dataclass(frozen=True)
class Summed:
    """An event that says what its entity showed before it."""

    shown: int


UNSET = object()


class Summing:
    """An entity that counts its events, and that its handlers may copy as any other."""

    def __init__(self):
        self.count = 0
        self.numbers = []

    @property
    def shown(self):
        return sum(self.numbers)

    def put(self, _):
        self.count += 1
        self.numbers.append(self.count)


class Shared(Summing):
    """Handlers only read it, so they get itself."""

    def __deepcopy__(self, memo):
        return self


class Light(Summing):
    """Handlers get another one that shares the list."""

    def __deepcopy__(self, memo):
        made = Light()
        made.count, made.numbers = self.count, self.numbers
        return made


class Closure(Summing):
    """It holds a function that looks at it."""

    def __init__(self):
        super().__init__()
        self.days = defaultdict(lambda: self.count)

    @property
    def shown(self):
        return len(self.days)

    def put(self, event):
        super().put(event)
        self.days[self.days[event.shown]] = 1


class Late(Summing):
    """Its projector compares an object by its identity."""

    def __init__(self):
        super().__init__()
        self.first = UNSET

    @property
    def shown(self):
        return -1 if self.count < 60 or self.first is UNSET else self.first

    def put(self, event):
        super().put(event)
        if self.count >= 60 and self.first is UNSET:
            self.first = self.count


class Counting(Summing):
    """It notes which events are applied to any of its instances."""

    projected: list[int] = []  # noqa: RUF012

    def put(self, event):
        super().put(event)
        self.projected.append(self.count)


def summing(class_, store, happens):
    """Return a component of such entities; something may happen before one is decided on."""
    component = Component("summing", entity=class_, id="account_id")

    @component.handle(Deposit, once=None)
    def handle(command, entity, context):
        if happens(command) == "race":
            with contextlib.suppress(LockTimeoutError):
                write_first(store, Summing if class_ is Counting else class_, command)
        return Summed(entity.shown)

    component.project(Summed)(class_.put)
    return component


def write_first(store, class_, command):
    """Be another writer, who is first."""
    stream = f"summing-{command.account_id}"
    while True:
        version, shown = what_it_shows(store, class_, stream)
        with contextlib.suppress(ExpectedVersionError):  # the batch before was not committed
            return store.write(Summed(shown), stream, expected_version=version)


def what_it_shows(store, class_, stream):
    """Return the version of an entity and what it shows, and check what it showed before."""
    entity = class_()
    events = [message.decode(Summed) for message in store.read_stream(stream)]
    for event in events:
        assert event.shown == entity.shown
        entity.put(event)
    return len(events) - 1, entity.shown


@pytest.mark.parametrize("class_", [Summing, Shared, Light, Closure, Late])
def test_after_a_lost_race_an_entity_is_what_projectors_make_it(connection, store, class_):
    """Whatever a class does when it is copied for handlers, events follow from its stream."""
    races = {"d57"}

    def happens(command):
        if command.deposit_id in races:
            races.clear()
            return "race"
        return None

    store.write([deposit(f"d{n}", account="1") for n in range(100)], "summing:command-1")
    component = summing(class_, store, happens)
    assert drain(connection, component, batch_size=10).counts == {"handled": 100}
    what_it_shows(store, class_, "summing-1")
    assert store.stream_version("summing-1") == 100


@pytest.mark.parametrize("seed", chance.seeds(2))
def test_entities_are_what_the_log_makes_them(connection, store, seed):
    """Others write too, handlers raise, and messages come again, in whatever batches."""
    draw, seen = random.Random(seed), Counter()

    def happens(command):
        seen[command.deposit_id] += 1
        if seen[command.deposit_id] > 1:
            return None
        if draw.random() < 0.03:
            raise ValueError
        return "race" if draw.random() < 0.05 else None

    connection.execute("SET lock_timeout = '100ms'")  # a batch that is tried again may have locks
    component = summing(Summing, store, happens)
    for size in draw.sample([3, 7, 20], 2):
        sent = [deposit(f"{size}/{n}", account=draw.choice("123")) for n in range(50)]
        store.write(sent, "summing:command-1")
        assert drain(connection, component, batch_size=size).counts == {"handled": 50}
        redeliver(connection, draw.randrange(50))
        drain(connection, component, batch_size=size)
    for account in "123":
        what_it_shows(store, Summing, f"summing-{account}")
    events = sum(store.stream_version(f"summing-{account}") + 1 for account in "123")
    assert events > 100  # others wrote some of them


@pytest.mark.parametrize("kind", ["race", "raised"])
def test_a_batch_that_fails_reads_little_again(connection, store, kind):
    """After a lost race, or a handler that raised, not all of a long stream is read again."""
    failing = {"d1505"}

    def happens(command):
        if command.deposit_id in failing:
            failing.clear()
            Counting.projected.clear()
            if kind == "raised":
                raise ValueError
            return "race"
        return None

    store.write([deposit(f"d{n}", account="1") for n in range(1500)], "summing:command-1")
    store.write([deposit(f"d{n}", account="1") for n in range(1500, 1600)], "summing:command-1")
    drain(connection, summing(Counting, store, happens), batch_size=100)
    assert store.stream_version("summing-1") == 1599 + (kind == "race")
    assert min(Counting.projected) > 1000
