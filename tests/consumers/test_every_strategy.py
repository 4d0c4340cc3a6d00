"""What all strategies have in common, whatever they recognize a message by."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from psycopg import conninfo

import consumers
from reservation import Component
from reservation.strategies import (
    MessageIdInEvents,
    PositionInEvents,
    Processed,
    Revisions,
    StateBased,
)
from tests.apps.bank import address, drain
from tests.apps.once import counted_round_trips, redeliver
from tests.support.commands import invoke_cli

SENT = "box:command-1"
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
EACH = pytest.mark.parametrize("once", STRATEGIES.values(), ids=STRATEGIES)


@dataclass(frozen=True)
class Put:
    put_id: str
    revision: int
    box_id: str = "1"
    source: str = "s"


@dataclass(frozen=True)
class Kept:
    box_id: str
    put_id: str
    beside: int


@dataclass
class Box:
    things: list[str] = field(default_factory=list)


def box(once, fails=frozenset(), **options):
    """Return a component that keeps what is put into it; what is among `fails` cannot be kept."""
    component = Component("box", entity=Box, id="box_id", **options)

    @component.handle(Put, once=once)
    def put(command, entity, context):
        if isinstance(once, StateBased):
            entity.things.append(command.put_id)
        if command.put_id in fails:
            raise ValueError
        beside = len(entity.things) - isinstance(once, StateBased)
        return Kept(command.box_id, command.put_id, beside)

    component.project(Kept)(lambda entity, event: entity.things.append(event.put_id))
    return component


def things(store, box_id="1"):
    """Return what a box holds, each thing with how many were there before."""
    events = [message.decode(Kept) for message in store.read_stream(f"box-{box_id}")]
    return [(event.put_id, event.beside) for event in events]


@EACH
@pytest.mark.parametrize("limit", [1, 100])
def test_a_redelivered_message_has_no_effect(connection, store, once, limit):
    """A redelivered message has no effect, and new messages beside it have theirs."""
    store.write([Put("a", 1), Put("b", 2)], SENT)
    assert drain(connection, box(once), batch_size=limit).counts == {"handled": 2}
    store.write(Put("c", 3), SENT)
    known = "redelivered" if isinstance(once, StateBased) else "duplicate"
    for handled in (1, 0):
        redeliver(connection)
        counts = drain(connection, box(once), batch_size=limit).counts
        assert counts == +Counter({known: 3 - handled, "handled": handled})
    assert things(store) == [("a", 0), ("b", 1), ("c", 2)]


@EACH
def test_of_a_message_that_fails_nothing_is_recorded(connection, store, once):
    """It is handled once its handler is repaired, before those that wait behind it."""
    store.write([Put("a", 1), Put("b", 2), Put("c", 3)], SENT)
    store.write(Put("d", 1, "2"), "box:command-2")
    counts = drain(connection, box(once, fails={"b"})).counts
    assert counts == {"handled": 2, "dead": 1, "parked": 1}
    connection.execute("UPDATE reservation.dead_letters SET state = 'retry' WHERE state = 'dead'")
    drain(connection, box(once))
    assert things(store) == [("a", 0), ("b", 1), ("c", 2)]
    assert things(store, "2") == [("d", 0)]
    redeliver(connection)
    drain(connection, box(once))
    assert len(things(store)) == 3


@EACH
def test_the_role_of_a_consumer_may_keep_what_is_recorded(connection, store, once):
    """Also snapshots; and it may create partitions, but removes nothing."""
    role = f"keeper_{connection.info.dbname}"
    url = address(connection)
    granted = invoke_cli("store", "grants", "consumer", role, "--database-url", url)
    assert granted.returncode == 0, granted.stderr
    connection.execute(f"ALTER ROLE {role} LOGIN")
    component = box(once, snapshot_every=1)
    try:
        for n in range(2):
            store.write(Put(f"p{n}", n), SENT)
            consumers.drain(component, conninfo.make_conninfo(url, user=role))
        redeliver(connection)
        consumers.drain(component, conninfo.make_conninfo(url, user=role))
    finally:
        connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
    assert things(store) == [("p0", 0), ("p1", 1)]


@EACH
def test_a_batch_takes_a_constant_number_of_round_trips(connection, store, monkeypatch, once):
    """Looking for what was handled and recording what is take no more of them with its size."""
    numbers, component = [], box(once)
    for size in (1, 40, 120):
        for n in range(size):
            store.write(Put(f"{size}-{n}", 1, f"{size}-{n}"), f"box:command-{size}-{n}")
        with counted_round_trips(monkeypatch) as counted:
            assert drain(connection, component).counts == {"handled": size}
        numbers.append(len(counted))
    _, few, many = numbers
    assert 0 < many <= few
