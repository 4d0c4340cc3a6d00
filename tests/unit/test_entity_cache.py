"""Entities kept between batches: what is read again, and that they are what their streams say."""

import random

import pytest

from bank.messages import Deposit
from reservation import Component
from reservation.declaration.table import declarations
from reservation.entity.cache import EntityCache
from reservation.handlers.copying import equivalent_copy
from tests.support import chance
from tests.support.controls import deposit, stored

STREAMS = ["made-1", "made-2", "made-3"]


class Streams:
    """Stands for the store.

    Attributes:
        read: the positions from which streams were read, in order.
    """

    def __init__(self):
        self._messages = {name: [] for name in STREAMS}
        self.read = []

    def write(self, name, count):
        """Write deposits to a stream, and return their ids."""
        messages = self._messages[name]
        first = len(messages)
        ids = [f"{name}/{n}" for n in range(first, first + count)]
        for n, id_ in enumerate(ids, first):
            messages.append(stored(deposit(id_), name, position=n))
        return ids

    def read_events(self, positions):
        """Return the messages of streams from positions on."""
        self.read.append(dict(positions))
        return [one for name, start in positions.items() for one in self._messages[name][start:]]


@pytest.fixture
def store():
    return Streams()


@pytest.fixture
def made():
    """Return a component whose entity lists the ids of its deposits."""
    component = Component("made", entity=list, id="account_id")
    component.project(Deposit)(lambda entity, event: entity.append(event.deposit_id))
    return component


def cached(made, **options):
    return EntityCache(list, declarations(made).projection, **{"copied": equivalent_copy} | options)


def test_after_a_rollback_only_what_came_after_a_copy_is_read(made, store):
    """What was decided on and not committed is gone, and the whole stream is not read for it."""
    ids = store.write("made-1", 40)
    cache = cached(made)
    cache.load(store, ["made-1"])
    cache.committed()
    ids += store.write("made-1", 3)
    loaded = cache.load(store, ["made-1"])["made-1"]
    loaded.entity.append("not committed")
    loaded.version += 1
    cache.roll_back()
    assert cache.load(store, ["made-1"])["made-1"].entity == ids
    assert store.read == [{"made-1": 0}, {"made-1": 40}, {"made-1": 40}]


def test_a_second_rollback_without_a_commit_reads_everything(made, store):
    """An attempt that fails with the copies, too, is followed by one without them."""
    ids = store.write("made-1", 40)
    cache = cached(made)
    cache.load(store, ["made-1"])
    cache.committed()
    for _ in range(2):
        cache.roll_back()
        assert cache.load(store, ["made-1"])["made-1"].entity == ids
    assert store.read == [{"made-1": 0}, {"made-1": 40}, {"made-1": 0}]


def test_what_was_loaded_before_a_commit_is_not_trusted(made, store):
    """A copy that may hold what was decided before it, and is not committed, is not used."""
    store.write("made-1", 40)
    cache = cached(made)
    loaded = cache.load(store, ["made-1"])["made-1"]
    loaded.entity.append("decided")
    loaded.version += 1
    cache.load(store, ["made-1"])  # of the next batch, while the one before is written
    cache.roll_back()
    cache.load(store, ["made-1"])
    assert [start["made-1"] for start in store.read] == [0, 41, 0]


def test_copies_are_bounded_as_the_entities_are(made, store):
    """No copy is kept of an entity that is not, and of none more than two."""
    for name in STREAMS:
        store.write(name, 40)
    cache = cached(made, capacity=2)
    for _ in range(40):
        store.write("made-3", 20)
        cache.load(store, STREAMS)
        cache.committed()
        assert list(cache._copies) == ["made-2", "made-3"]
        assert max(map(len, cache._copies.values())) <= 2


def test_an_entity_that_cannot_be_copied_is_read_again(made, store):
    """Where there is no copy, a rollback reads the whole stream."""

    ids = store.write("made-1", 40)
    cache = cached(made, copied=lambda entity: None)
    cache.load(store, ["made-1"])
    cache.committed()
    cache.roll_back()
    assert cache.load(store, ["made-1"])["made-1"].entity == ids
    assert store.read == [{"made-1": 0}, {"made-1": 0}]


@pytest.mark.parametrize("seed", chance.seeds(20))
def test_entities_are_what_the_log_and_the_decisions_make_them(made, store, seed):
    """Batches are decided ahead, committed and lost in turns, while others write, too.

    At each load an entity is what its stream holds, and then what the batch before decided on it.
    """
    draw = random.Random(seed)
    cache, stored = cached(made), {name: [] for name in STREAMS}
    decided, doomed = {}, set()  # by stream, what the last batch decided; those others wrote to

    def write_to(name, count):
        stored[name] += store.write(name, count)

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
    assert any(0 < start[name] < len(stored[name]) for start in store.read for name in start)
