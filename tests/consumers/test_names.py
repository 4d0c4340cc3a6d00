"""Names that change: what was stored under a former name belongs to the class that has it now."""

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from reservation import Component, Key, Write
from reservation.errors import DeclarationError, EncodeError, HandlerError
from reservation.strategies import (
    MessageIdInEvents,
    PositionInEvents,
    Processed,
    Revisions,
    StateBased,
)
from reservation.testing import check_deterministic
from tests.apps.bank import drain
from tests.apps.changing import LIMIT, SENT, Added, CoinPut, Jar, Put, Refused, jar, puts, raw


def types_of(store, stream_name="jar-1"):
    """Return how many messages of each type a stream has."""
    return Counter(message.type for message in store.read_stream(stream_name))


def read_again(connection):
    """Set every position back, so that all messages are read again."""
    connection.execute("UPDATE reservation.moves SET position = 0, message_id = NULL")


# Events


def test_an_entity_has_the_events_that_were_stored_under_a_former_name(connection, store):
    """So a limit holds, although the class of the events was renamed halfway."""
    sizes = (1, 3, 1000)
    for size in sizes:
        store.write([Put(f"{size}", f"p{n}") for n in range(6)], f"jar:command-{size}")
    drain(connection, jar(CoinPut))
    for size in sizes:
        store.write([Put(f"{size}", f"p{n}") for n in range(6, 16)], f"jar:command-{size}")
        drain(connection, jar(Added, former_names="CoinPut"), batch_size=size)
    expected = {"CoinPut": 6, "Added": LIMIT - 6, "Refused": 6}
    assert {size: types_of(store, f"jar-{size}") for size in sizes} == dict.fromkeys(
        sizes, expected
    )


def test_a_class_may_have_had_several_names(connection, store):
    """All of its events are projected."""
    for name in ("Coin", "CoinPut", "Coin", "Added"):
        raw(connection, "jar-1", name, {"putId": "p"})
    store.write(puts(0, 10), SENT)
    drain(connection, jar(Added, former_names=["Coin", "CoinPut"]))
    assert types_of(store)["Refused"] == 10 - (LIMIT - 4)


def test_in_two_deployments_no_process_meets_a_name_that_it_does_not_know(connection, store):
    """The first reads both names and writes the former; the second writes the new one."""
    old, first = jar(CoinPut), jar(Added, stored_as="CoinPut")
    for n, component in enumerate((old, first, old, first)):
        store.write(puts(2 * n, 2), SENT)
        assert drain(connection, component).counts == {"handled": 2}
    assert types_of(store) == {"CoinPut": 8}
    store.write(puts(8, 4), SENT)
    second = jar(Added, former_names="CoinPut")
    assert drain(connection, second).counts == {"handled": 4}
    store.write(puts(12, 1), SENT)
    assert drain(connection, first).counts == {"handled": 1}
    assert types_of(store) == {"CoinPut": 8, "Added": 2, "Refused": 3}


@pytest.mark.parametrize("names", [{}, {"former_names": "Coin"}], ids=["none", "another"])
def test_without_its_former_name_an_event_is_unknown(connection, store, names):
    """The command is not handled on an entity that lacks the event."""
    raw(connection, "jar-1", "CoinPut", {"putId": "p"})
    store.write(puts(0, 1), SENT)
    with pytest.raises(
        DeclarationError, match=r"does not declare: CoinPut; .*former_names='CoinPut'"
    ):
        drain(connection, jar(Added, **names))
    assert types_of(store) == {"CoinPut": 1}


def test_an_event_of_an_undeclared_class_is_refused_whatever_its_name():
    """The former name belongs to the class that claims it."""
    component = jar(Added, former_names="Coin")
    component.handle(Add, once=None)(lambda *_: CoinPut("p"))
    with pytest.raises(HandlerError, match="wrote the event CoinPut, which is not declared"):
        check_deterministic(component, Add("1", "a"))


def test_a_snapshot_is_not_used_by_code_that_knows_other_names(connection, store):
    """It may lack the events of that name."""
    revisions = set()
    for number, was in enumerate([(), "CoinPut", ["CoinPut", "Coin"]]):
        component = Component("jar", entity=Jar, id="jar_id", snapshot_every=1)
        component.handle(Put, once=None)(lambda command, *_: Added(command.put_id))
        component.project(Added)(lambda entity, event: None)
        component.message(Added, former_names=was)
        store.write(puts(number, 1), SENT)
        drain(connection, component)
        query = "SELECT revision FROM reservation.snapshots"
        revisions.update(connection.execute(query).fetchall())
    assert len(revisions) == 3


# Further messages


@dataclass(frozen=True)
class Notice:
    put_id: str


@pytest.mark.parametrize("once", [None, StateBased()], ids=["events", "states"])
def test_a_further_message_is_stored_as_its_declaration_says(connection, store, once):
    """Be it written or replied."""
    component = Component("jar", entity=Jar, id="jar_id")
    component.message(Notice, stored_as="Letter")

    @component.handle(Put, once=once)
    def put(command, entity, context):
        context.write(context.follow(command, Notice), "mail-1")
        context.write(Added(command.put_id), "other-1")

    store.write(puts(0, 1), SENT)
    drain(connection, component)
    assert types_of(store, "mail-1") == {"Letter": 1}
    assert types_of(store, "other-1") == {"Added": 1}


@dataclass(frozen=True)
class Coins:
    """What `CoinPut` is called now, with a field more."""

    __schema_version__ = 2

    put_id: str
    coins: int


def publishing(make: Any) -> Component:
    """Return a component that keeps states, returns an event and writes another one."""
    component = Component("jar", entity=Jar, id="jar_id")

    @component.handle(Put, once=StateBased())
    def put(command, state, context):
        context.write(Added(command.put_id), "other-1")
        return make(command)

    return component


@pytest.mark.parametrize(
    ("coins", "outcome"), [(1, "redelivered"), (2, "differing")], ids=["same", "another"]
)
def test_outputs_that_mean_the_same_do_not_differ(connection, store, coins, outcome):
    """A repeated message publishes what it did at first, in the shape of then."""
    store.write(puts(0, 1), SENT)
    drain(connection, publishing(lambda command: CoinPut(command.put_id)))
    read_again(connection)
    new = publishing(lambda command: Coins(command.put_id, coins))
    new.message(Coins, former_names="CoinPut", upcast=lambda data: data | {"coins": 1})
    assert drain(connection, new).counts == {outcome: 1}
    assert types_of(store) == {"CoinPut": 1}
    assert types_of(store, "other-1") == {"Added": 1}


# Commands


@dataclass(frozen=True)
class Add:
    """What `Put` is called now."""

    jar_id: str
    put_id: str


def renamed(how: str, class_: type, once: Any = None, **names: Any) -> Component:
    """Return a component with one command, declared in one of the ways."""
    component = Component("jar", entity=Jar, id="jar_id")
    component.message(Refused)
    component.project(Added)(lambda entity, event: None)

    def handle(command, *_):
        return Added(command.put_id)

    if how == "initiate":
        component.initiate(class_)(handle)
    elif how == "direct":
        component.handle(class_, once=once)(handle)
    else:
        key = "put_id" if how == "into" else lambda command: command.put_id
        component.handle(class_, key=key)(handle)
    if names:
        component.message(class_, **names)
    return component


@pytest.mark.parametrize("how", ["into", "function"])
def test_a_reissue_under_the_new_name_is_a_duplicate(connection, store, how):
    """Of a command that was reserved under the former one, by the old code or by the new."""
    sizes = (1, 3, 1000)
    store.write([Put(f"{size}", "a") for size in sizes], SENT)
    drain(connection, renamed(how, Put))
    done = {}
    for size in map(str, sizes):
        store.write(
            [Add(size, "a"), Put(size, "b"), Add(size, "b"), Add(size, "c"), Put(size, "c")], SENT
        )
        component = renamed(how, Add, former_names="Put")
        done[size] = drain(connection, component, batch_size=int(size)).counts
    expected = {"reserved": 2, "handled": 2, "duplicate": 3}
    assert done == dict.fromkeys(map(str, sizes), expected)
    assert [types_of(store, f"jar-{size}") for size in sizes] == [{"Added": 3}] * 3


def test_what_was_reserved_and_not_yet_handled_is_handled_by_the_new_class(connection, store):
    """A reservation keeps the name of its command."""
    raw(connection, "jarTransaction-1+a", "Put", {"jarId": "1", "putId": "a"})
    done = drain(connection, renamed("into", Add, former_names="Put"))
    assert done.counts == {"handled": 1}
    assert types_of(store) == {"Added": 1}


@pytest.mark.parametrize("again", [Put, Add])
def test_a_renamed_command_starts_its_stream_once(connection, store, again):
    """Whichever name the first had, and whichever the reissue."""
    store.write([Put("1", "a"), Add("2", "a")], SENT)
    drain(connection, renamed("initiate", Add, former_names="Put"))
    store.write([again("1", "a"), again("2", "a"), again("1", "b")], SENT)
    done = drain(connection, renamed("initiate", Add, former_names="Put"))
    assert done.counts == {"duplicate": 2, "conflict": 1}


@dataclass(frozen=True)
class OldPut:
    jar_id: str
    put_id: str
    revision: int = 0
    source: str = "s"


@dataclass(frozen=True)
class NewPut(OldPut):
    """What `OldPut` is called now."""


STRATEGIES = {
    "id": Processed(),
    "key": Processed(key="put_id"),
    "days": Processed(key="put_id", keep=timedelta(days=9)),
    "message id": MessageIdInEvents(),
    "sequence": PositionInEvents(),
    "states": StateBased(),
}


@pytest.mark.parametrize("once", STRATEGIES.values(), ids=STRATEGIES)
def test_a_redelivery_to_the_new_class_is_recognized(connection, store, once):
    """Whichever strategy remembers it, by whatever name."""
    store.write([OldPut("1", "a"), OldPut("1", "b")], SENT)
    drain(connection, renamed("direct", OldPut, once))
    read_again(connection)
    drain(connection, renamed("direct", NewPut, once, former_names="OldPut"))
    assert types_of(store) == {"Added": 2}


@pytest.mark.parametrize("keep", [None, timedelta(days=9)])
def test_a_business_key_is_one_under_all_names(connection, store, keep):
    """Whether it was processed under the former name, under the new one, or in the same batch."""
    once = Processed(key="put_id", keep=keep)
    old = renamed("direct", OldPut, once)
    new = renamed("direct", NewPut, once, former_names="OldPut")
    store.write([OldPut("1", "a")], SENT)
    drain(connection, old)
    store.write([NewPut("1", "a"), NewPut("1", "b"), OldPut("1", "b"), OldPut("1", "c")], SENT)
    assert drain(connection, new).counts == {"handled": 2, "duplicate": 2}
    store.write([OldPut("1", "c"), OldPut("1", "b")], SENT)
    assert drain(connection, old).counts == {"duplicate": 2}


def test_a_revision_is_compared_across_names(connection, store):
    """A reissue under the new name is not newer."""
    once = Revisions()
    store.write([OldPut("1", "a", 1), OldPut("1", "a", 2)], SENT)
    drain(connection, renamed("direct", OldPut, once))
    store.write([NewPut("1", "a", 2), NewPut("1", "a", 3)], SENT)
    done = drain(connection, renamed("direct", NewPut, once, former_names="OldPut"))
    assert done.counts == {"handled": 1, "duplicate": 1}


def test_to_ignore_a_class_is_to_ignore_its_former_names(connection, store):
    """To ignore a former name leaves the others."""
    store.write([Put("1", "a"), Add("1", "b")], SENT)
    component = renamed("direct", Add, former_names="Put")
    component.ignore("Put")
    assert drain(connection, component).counts == {"ignored": 1, "handled": 1}
    store.write([Put("1", "a"), Add("1", "b")], SENT)
    component.ignore("Add")
    assert drain(connection, component).counts == {"ignored": 2}


def test_reservations_under_a_former_name_are_looked_at(connection, store):
    """A key that they would not be found under is refused at the start."""
    store.write([Put("1", "a")], SENT)
    drain(connection, renamed("into", Put))
    drain(connection, renamed("into", Add, former_names="Put"))
    component = Component("jar", id="jar_id")
    component.handle(Add, key=Key("put_id", per=None))(lambda *_: None)
    component.message(Add, former_names="Put")
    with pytest.raises(DeclarationError, match="reservations under other names"):
        drain(connection, component)


# Senders


def test_a_sender_writes_what_the_class_says(store):
    """Which needs no component; a class that inherits from it says nothing."""

    @dataclass
    class Pay:
        __stored_as__ = "Payment"
        __schema_version__ = 3
        amount: int

    @dataclass
    class PayMore(Pay):
        pass

    store.write_batch([Write(Pay(1), "pay-1"), Write(PayMore(2), "pay-1")])
    found = [(m.type, m.metadata.schema_version) for m in store.read_stream("pay-1")]
    assert found == [("Payment", 3), ("PayMore", None)]


def test_so_does_a_component(connection, store):
    """Which can read that name."""

    @dataclass(frozen=True)
    class Kept(Added):
        __stored_as__ = "CoinPut"

    store.write(puts(0, 1), SENT)
    drain(connection, jar(Kept))
    assert types_of(store) == {"CoinPut": 1}
    store.write(puts(1, 1), SENT)
    assert drain(connection, jar(CoinPut)).counts == {"handled": 1}


@pytest.mark.parametrize("value", [0, "2", True, 1.0])
def test_a_version_is_a_whole_number_from_1(store, value):
    """Whoever comes to it first, a sender or a declaration."""

    @dataclass
    class Odd:
        jar_id: str

    Odd.__schema_version__ = value
    with pytest.raises(EncodeError, match=r"Odd\.__schema_version__ is .*, not a version"):
        store.write(Odd("1"), SENT)
    with pytest.raises(DeclarationError, match="not a version"):
        Component("jar", id="jar_id").message(Odd)


def test_a_stored_name_is_a_text(store):
    """An empty one would be the type of messages that nobody could declare."""

    @dataclass
    class Odd:
        __stored_as__ = ""

    with pytest.raises(EncodeError, match=r"Odd\.__stored_as__ is not a name"):
        store.write(Odd(), SENT)
