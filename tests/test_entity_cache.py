"""Entities are kept between batches, and are what their streams make them, whatever fails."""

import random
from collections import defaultdict
from dataclasses import dataclass

import pytest

from reservation import Component, MessageStore
from reservation.entity.cache import EntityCache
from reservation.errors import ExpectedVersionError, HandlerError
from reservation.handlers.copying import equivalent_copy
from reservation.postgres.connection import connect
from tests import chance
from tests.bank import batch
from tests.controls import deposit

STREAMS = ["made-1", "made-2", "made-3"]


@pytest.fixture
def made():
    """Return a component whose entity lists the ids of its deposits."""
    component = Component("made", entity=list, id="account_id")
    component.project(type(deposit()))(lambda entity, event: entity.append(event.deposit_id))
    return component


@pytest.fixture
def read(store, monkeypatch):
    """Give the positions from which streams were read, in order."""
    starts = []
    read_streams = store.read_streams

    def spied(positions):
        starts.append(dict(positions))
        return read_streams(positions)

    monkeypatch.setattr(store, "read_streams", spied)
    return starts


def write(store, name, count, first=0):
    """Write deposits to a stream, and return their ids."""
    ids = [f"{name}/{n}" for n in range(first, first + count)]
    store.write([deposit(id_) for id_ in ids], name)
    return ids


def cached(made, **options):
    return EntityCache(list, made.projection, **{"copied": equivalent_copy} | options)


def test_after_a_rollback_only_what_came_after_a_copy_is_read(made, store, read):
    """What was decided on and not committed is gone, and the whole stream is not read for it."""
    ids = write(store, "made-1", 40)
    cache = cached(made)
    cache.load(store, ["made-1"])
    cache.committed()
    ids += write(store, "made-1", 3, first=40)
    loaded = cache.load(store, ["made-1"])["made-1"]
    loaded.entity.append("not committed")
    loaded.version += 1
    cache.roll_back()
    assert cache.load(store, ["made-1"])["made-1"].entity == ids
    assert read == [{"made-1": 0}, {"made-1": 40}, {"made-1": 40}]


def test_a_second_rollback_without_a_commit_reads_everything(made, store, read):
    """An attempt that fails with the copies, too, is followed by one without them."""
    ids = write(store, "made-1", 40)
    cache = cached(made)
    cache.load(store, ["made-1"])
    cache.committed()
    for _ in range(2):
        cache.roll_back()
        assert cache.load(store, ["made-1"])["made-1"].entity == ids
    assert read == [{"made-1": 0}, {"made-1": 40}, {"made-1": 0}]


def test_what_was_loaded_before_a_commit_is_not_trusted(made, store, read):
    """A copy that may hold what was decided before it, and is not committed, is not used."""
    write(store, "made-1", 40)
    cache = cached(made)
    loaded = cache.load(store, ["made-1"])["made-1"]
    loaded.entity.append("decided")
    loaded.version += 1
    cache.load(store, ["made-1"])  # of the next batch, while the one before is written
    cache.roll_back()
    cache.load(store, ["made-1"])
    assert [start["made-1"] for start in read] == [0, 41, 0]


def test_copies_are_bounded_as_the_entities_are(made, store):
    """No copy is kept of an entity that is not, and of none more than two."""
    for name in STREAMS:
        write(store, name, 40)
    cache = cached(made, capacity=2)
    for n in range(40):
        write(store, "made-3", 20, first=40 + 20 * n)
        cache.load(store, STREAMS)
        cache.committed()
        assert list(cache._copies) == ["made-2", "made-3"]
        assert max(map(len, cache._copies.values())) <= 2


def test_an_entity_that_cannot_be_copied_is_read_again(made, store, read):
    """Where there is no copy, a rollback reads the whole stream."""

    ids = write(store, "made-1", 40)
    cache = cached(made, copied=lambda entity: None)
    cache.load(store, ["made-1"])
    cache.committed()
    cache.roll_back()
    assert cache.load(store, ["made-1"])["made-1"].entity == ids
    assert read == [{"made-1": 0}, {"made-1": 0}]


@dataclass(frozen=True)
class Counted:
    """An event that says how many there were before it."""

    before: int


@pytest.mark.parametrize("kind", ["race", "raised"])
def test_a_batch_that_fails_reads_little_again(database_url, store, monkeypatch, kind):
    """After a lost race, or a handler that raised, a batch decides on what is stored now."""
    counting, starts, failing = Component("counting", entity=list, id="account_id"), [], []

    @counting.handle(type(deposit()))
    def handle(command, entity, context):
        if failing:
            failing.pop()
            store.write(Counted(len(entity)), "counting-123")
            if kind == "raised":
                raise ValueError("not now")
        return Counted(len(entity))

    counting.project(Counted)(lambda entity, event: entity.append(event.before))
    read_streams = MessageStore.read_streams

    def spied(self, positions):
        starts.extend(positions.values())
        return read_streams(self, positions)

    monkeypatch.setattr(MessageStore, "read_streams", spied)
    with connect(database_url, autocommit=True) as consuming:
        claimed = batch(consuming, "counting:command", counting)
        for _ in range(10):
            store.write([deposit() for _ in range(10)], "counting:command-123")
            claimed.run(100)
        store.write(deposit(), "counting:command-123")
        failing.append(True)
        starts.clear()
        with pytest.raises(ExpectedVersionError if kind == "race" else HandlerError):
            claimed.run(100)
        assert claimed.run(100, careful=kind == "race").counts == {"handled": 1}
    before, again = starts
    assert before == 100
    assert 60 < again < 100
    stored = [message.decode(Counted).before for message in store.read_stream("counting-123")]
    assert stored == [*range(102)]


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


@pytest.mark.parametrize("class_", [Summing, Shared, Light, Closure, Late])
def test_after_a_rollback_an_entity_is_what_projectors_make_it(database_url, store, class_):
    """Whatever a class does when it is copied for handlers, events follow from its stream."""
    summing, failing = Component("summing", entity=class_, id="account_id"), []

    @summing.handle(type(deposit()))
    def handle(command, entity, context):
        if failing:
            failing.pop()
            store.write(Summed(entity.shown), "summing-123")  # another writer is first
        return Summed(entity.shown)

    summing.project(Summed)(class_.put)
    with connect(database_url, autocommit=True) as consuming:
        claimed = batch(consuming, "summing:command", summing)
        for n in range(10):
            store.write([deposit() for _ in range(10)], "summing:command-123")
            if n == 5:
                failing.append(True)
                with pytest.raises(ExpectedVersionError):
                    claimed.run(100)
            claimed.run(100, careful=n == 5)
    entity = class_()
    for message in store.read_stream("summing-123"):
        event = message.decode(Summed)
        assert event.shown == entity.shown
        entity.put(event)
    assert entity.count == 101


@pytest.mark.parametrize("seed", chance.seeds(20))
def test_entities_are_what_the_log_and_the_decisions_make_them(made, store, read, seed):
    """Batches are decided ahead, committed and lost in turns, while others write, too.

    At each load an entity is what its stream holds, and then what the batch before decided on it.
    """
    draw = random.Random(seed)
    cache, stored = cached(made), {name: [] for name in STREAMS}
    decided, doomed = {}, set()  # by stream, what the last batch decided; those others wrote to

    def write_to(name, count):
        stored[name] += write(store, name, count, first=len(stored[name]))

    for _ in range(60):
        loaded = cache.load(store, STREAMS)
        for name in set(STREAMS) - doomed:
            assert loaded[name].entity == stored[name] + decided.get(name, [])
            assert loaded[name].version == len(loaded[name].entity) - 1
        ahead = {}
        for name in draw.sample(STREAMS, draw.randrange(4)):
            first = len(loaded[name].entity)
            ahead[name] = [f"{name}/{first + n}" for n in range(draw.randrange(1, 12))]
            loaded[name].entity += ahead[name]
            loaded[name].version += len(ahead[name])
        others = draw.sample(STREAMS, draw.choice([0, 0, 0, 1]))
        for name in others:
            write_to(name, draw.randrange(1, 12))
        if draw.random() < 0.1 or doomed & {*decided} or {*others} & {*decided}:
            cache.roll_back()
            decided, doomed = {}, set()
            continue
        for name, ids in decided.items():
            write_to(name, len(ids))
        cache.committed()
        decided, doomed = ahead, {*others} & {*ahead}
        if draw.random() < 0.05:
            cache.clear()
            decided, doomed = {}, set()
    assert any(0 < start[name] < len(stored[name]) for start in read for name in start)
