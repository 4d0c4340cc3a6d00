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
        asked: the positions from which streams were read, in order.
    """

    def __init__(self):
        self._messages = {name: [] for name in STREAMS}
        self.asked = []

    def write(self, name, count):
        """Write deposits to a stream, and return their ids."""
        messages = self._messages[name]
        first = len(messages)
        ids = [f"{name}/{n}" for n in range(first, first + count)]
        for n, id_ in enumerate(ids, first):
            messages.append(stored(deposit(id_), name, position=n))
        return ids

    def read(self, positions):
        """Return the messages of streams from positions on."""
        self.asked.append(positions)
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


def load(cache, store, names):
    """Return the entities of streams, with what has to be read of them."""
    loading = cache.load(names)
    if loading.reading is None:
        return loading.finish([])
    names, starts = (array.values for array in loading.reading.parameters)
    return loading.finish(store.read(dict(zip(names, starts, strict=True))))


def cached(made, **options):
    return EntityCache(list, declarations(made).projection, **{"copied": equivalent_copy} | options)


def test_after_a_rollback_only_what_came_after_a_copy_is_read(made, store):
    """What was decided on and not committed is gone, and the whole stream is not read for it."""
    ids = store.write("made-1", 40)
    cache = cached(made)
    load(cache, store, ["made-1"])
    cache.committed()
    ids += store.write("made-1", 3)
    loaded = load(cache, store, ["made-1"])["made-1"]
    loaded.entity.append("not committed")
    loaded.version += 1
    cache.roll_back()
    assert load(cache, store, ["made-1"])["made-1"].entity == ids
    assert store.asked == [{"made-1": 0}, {"made-1": 40}, {"made-1": 40}]


def test_a_second_rollback_without_a_commit_reads_everything(made, store):
    """An attempt that fails with the copies, too, is followed by one without them."""
    ids = store.write("made-1", 40)
    cache = cached(made)
    load(cache, store, ["made-1"])
    cache.committed()
    for _ in range(2):
        cache.roll_back()
        assert load(cache, store, ["made-1"])["made-1"].entity == ids
    assert store.asked == [{"made-1": 0}, {"made-1": 40}, {"made-1": 0}]


def test_copies_are_bounded_as_the_entities_are(made, store):
    """No copy is kept of an entity that is not."""
    for name in STREAMS:
        store.write(name, 40)
    cache = cached(made, capacity=2)
    for _ in range(40):
        store.write("made-3", 20)
        load(cache, store, STREAMS)
        cache.committed()
        assert list(cache._copies) == ["made-2", "made-3"]


def test_an_entity_that_cannot_be_copied_is_read_again(made, store):
    """Where there is no copy, a rollback reads the whole stream."""

    ids = store.write("made-1", 40)
    cache = cached(made, copied=lambda entity: None)
    load(cache, store, ["made-1"])
    cache.committed()
    cache.roll_back()
    assert load(cache, store, ["made-1"])["made-1"].entity == ids
    assert store.asked == [{"made-1": 0}, {"made-1": 0}]


@pytest.mark.parametrize("seed", chance.seeds(20))
def test_entities_are_what_the_log_makes_them(made, store, seed):
    """Batches are decided, committed and lost in turns, while others write, too."""
    draw = random.Random(seed)
    cache, stored = cached(made), {name: [] for name in STREAMS}
    for _ in range(60):
        loaded = load(cache, store, STREAMS)
        for name in STREAMS:
            assert loaded[name].entity == stored[name]
            assert loaded[name].version == len(stored[name]) - 1
        others = draw.sample(STREAMS, draw.choice([0, 0, 0, 1]))
        for name in others:
            stored[name] += store.write(name, draw.randrange(1, 12))
        decided = {name: draw.randrange(1, 12) for name in draw.sample(STREAMS, draw.randrange(4))}
        for name, count in decided.items():
            first = len(loaded[name].entity)
            loaded[name].entity += [f"{name}/{first + n}" for n in range(count)]
            loaded[name].version += count
        if draw.random() < 0.1 or {*others} & {*decided}:
            cache.roll_back()
            continue
        for name, count in decided.items():
            stored[name] += store.write(name, count)
        cache.committed()
        if draw.random() < 0.05:
            cache.clear()
    assert any(0 < start[name] < len(stored[name]) for start in store.asked for name in start)
