"""What all strategies have in common, whatever they recognize a message by.

A component has a command for each, with an entity of its own, so one drain handles those of all.
"""

from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from psycopg import conninfo

import consumers
from reservation import Component, Write
from reservation.strategies import (
    MessageIdInEvents,
    PositionInEvents,
    Processed,
    Revisions,
    StateBased,
)
from tests.apps.bank import address, drain
from tests.apps.once import counted_round_trips, redeliver
from tests.consumers.builders import retry_all
from tests.support.commands import invoke_cli

KEPT = timedelta(days=2)
STRATEGIES = {
    "processed": Processed(),
    "processed, kept": Processed(keep=KEPT),
    "key": Processed(key="put_id"),
    "key, kept": Processed(key="put_id", keep=KEPT),
    "message id": MessageIdInEvents(),
    "positions": PositionInEvents(),
    "pseudo events": PositionInEvents(pseudo_events=True),
    "revisions": Revisions(),
    "states": StateBased(),
    "deltas": StateBased("delta"),
}


@dataclass(frozen=True)
class Put:
    put_id: str
    revision: int
    box_id: str
    source: str = "s"


PUTS = {name: type(f"Put{n}", (Put,), {}) for n, name in enumerate(STRATEGIES)}


@dataclass(frozen=True)
class Kept:
    box_id: str
    put_id: str
    beside: int


@dataclass
class Box:
    things: list[str] = field(default_factory=list)


def boxes(*names, fails=frozenset(), **options):
    """Return a component that keeps what is put into boxes; `fails` cannot be kept."""
    component = Component("box", entity=Box, id="box_id", **options)

    def put(command, entity, context):
        beside = len(entity.things)
        if command.box_id.startswith(("states", "deltas")):
            entity.things.append(command.put_id)
        if command.put_id in fails:
            raise ValueError
        return Kept(command.box_id, command.put_id, beside)

    for name in names or STRATEGIES:
        component.handle(PUTS[name], once=STRATEGIES[name])(put)
    component.project(Kept)(lambda entity, event: entity.things.append(event.put_id))
    return component


def send(store, put_id, revision, suffix=""):
    """Put something into a box of each strategy."""
    for name, put in PUTS.items():
        box_id = name + suffix
        store.write(put(put_id, revision, box_id), f"box:command-{box_id}")


def things(store):
    """Return what each box holds, each thing with how many were there before."""
    found = {}
    for message in store.read_category("box"):
        if message.type == "Kept":
            event = message.decode(Kept)
            found.setdefault(event.box_id, []).append((event.put_id, event.beside))
    return found


def each(*expected, suffix=""):
    """Return the same things for each strategy."""
    return {name + suffix: list(expected) for name in STRATEGIES}


@pytest.mark.parametrize("limit", [1, 100])
def test_a_redelivered_message_has_no_effect(connection, store, limit):
    """A redelivered message has no effect, and new messages beside it have theirs."""
    size, states = len(STRATEGIES), 2
    send(store, "a", 1)
    send(store, "b", 2)
    assert drain(connection, boxes(), batch_size=limit).counts == {"handled": 2 * size}
    send(store, "c", 3)
    for handled in (1, 0):
        redeliver(connection)
        counts = drain(connection, boxes(), batch_size=limit).counts
        known = 3 - handled
        assert counts == +Counter(
            duplicate=known * (size - states), redelivered=known * states, handled=handled * size
        )
    assert things(store) == each(("a", 0), ("b", 1), ("c", 2))


def test_of_a_message_that_fails_nothing_is_recorded(connection, store):
    """It is handled once its handler is repaired, before those that wait behind it."""
    size = len(STRATEGIES)
    for revision, put_id in enumerate("abc"):
        send(store, put_id, revision)
    send(store, "d", 1, " beside")
    counts = drain(connection, boxes(fails={"b"})).counts
    assert counts == {"handled": 2 * size, "dead": size, "parked": size}
    retry_all(connection)
    drain(connection, boxes())
    expected = each(("a", 0), ("b", 1), ("c", 2)) | each(("d", 0), suffix=" beside")
    assert things(store) == expected
    redeliver(connection)
    drain(connection, boxes())
    assert things(store) == expected


def test_the_role_of_a_consumer_may_keep_what_is_recorded(connection, store):
    """Also snapshots; and it may create partitions, but removes nothing."""
    role = f"keeper_{connection.info.dbname}"
    url = address(connection)
    granted = invoke_cli("store", "grants", "consumer", role, "--database-url", url)
    assert granted.returncode == 0, granted.stderr
    connection.execute(f"ALTER ROLE {role} LOGIN")
    component = boxes(snapshot_every=1)
    try:
        for n in range(2):
            send(store, f"p{n}", n)
            consumers.drain(component, conninfo.make_conninfo(url, user=role))
        redeliver(connection)
        consumers.drain(component, conninfo.make_conninfo(url, user=role))
    finally:
        connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
    assert things(store) == each(("p0", 0), ("p1", 1))


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_batch_takes_a_constant_number_of_round_trips(connection, store, monkeypatch, name):
    """Looking for what was handled and recording what is take no more of them with its size."""
    numbers, component = [], boxes(name)
    for size in (1, 40, 120):  # the first also makes the positions
        ids = [f"{name}-{size}-{n}" for n in range(size)]
        store.write_batch([Write(PUTS[name](one, 1, one), f"box:command-{one}") for one in ids])
        with counted_round_trips(monkeypatch) as counted:
            assert drain(connection, component).counts == {"handled": size}
        numbers.append(len(counted))
    _, few, many = numbers
    assert few == many > 0
