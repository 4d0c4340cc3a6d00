"""Nothing unknown in one's own stream: an event that nobody declared is not passed over."""

from dataclasses import dataclass
from typing import Any

import pytest
from psycopg import connect

import consumers
from reservation import Component
from reservation.errors import DeclarationError, HandlerError
from reservation.strategies import MessageIdInEvents, PositionInEvents, StateBased
from reservation.testing import check_deterministic
from tests.apps.bank import address, drain
from tests.apps.changing import SENT, Added, CoinPut, Jar, Put, Refused, jar, puts, raw
from tests.consumers.builders import retry_all


@dataclass(frozen=True)
class Begin:
    jar_id: str


def letters(connection):
    """Return the letters of the store: reason, entity, error and attempts of each."""
    return connection.execute(
        "SELECT reason, entity, error, attempts FROM reservation.dead_letters"
        " ORDER BY global_position"
    ).fetchall()


def beginning(connection, *commands, name="Renamed"):
    """Return a jar with a command that writes an unknown event to jar-1, and sends commands."""
    component = jar(Added)

    @component.handle(Begin, once=None)
    def begin(command, entity, context):
        with connect(address(connection), autocommit=True) as other:
            raw(other, "jar-1", name, {"putId": "p"})
        for one in commands:
            context.write(one, f"jar:command-{one.jar_id}")

    return component


@pytest.mark.parametrize("size", [1, 2, 1000])
def test_a_command_of_an_entity_with_an_unknown_event_is_a_dead_letter(connection, store, size):
    """Whatever it shares its batch with; its entity waits, and others go on."""
    store.write(Begin("0"), "jar:command-0")
    sent = [Put("2", "a"), Put("1", "b"), Put("2", "c"), Put("1", "d")]
    done = drain(connection, beginning(connection, *sent), batch_size=size)
    assert done.counts == {"handled": 3, "dead": 1, "parked": 1}
    (reason, entity, error, attempts), (parked, *_) = letters(connection)
    assert (reason, entity, attempts, parked) == ("unknown_event", "jar-1", 1, "parked")
    assert "its event Renamed at jar-1, global position" in error
    assert "former_names='Renamed'" in error
    assert "jar.ignore('Renamed')" in error
    assert store.stream_version("jar-1") == 0


@pytest.mark.parametrize("how", ["ignore", "message", "project"])
def test_a_letter_is_handled_once_the_type_is_declared(connection, store, how):
    """In any of the ways."""

    @dataclass(frozen=True)
    class Renamed:
        put_id: str

    store.write(Begin("0"), "jar:command-0")
    drain(connection, beginning(connection, Put("1", "b"), Put("1", "d")))
    component = jar(Added)
    if how == "ignore":
        component.ignore("Renamed")
    elif how == "message":
        component.message(Renamed)
    else:
        component.project(Renamed)(lambda entity, event: None)
    retry_all(connection)
    drain(connection, component)
    assert [m.type for m in store.read_stream("jar-1")] == ["Renamed", "Added", "Added"]


def test_the_framework_s_own_events_are_known(connection, store):
    """A pseudo event records that a message was handled, in any component."""
    for once in (MessageIdInEvents(), PositionInEvents(pseudo_events=True)):
        component = Component("jar", entity=Jar, id="jar_id")
        component.handle(Put, once=once)(lambda *_: None)
        store.write(puts(0, 2), SENT)
        drain(connection, component)
    assert {m.type for m in store.read_stream("jar-1")} == {"PseudoEvent"}
    store.write(puts(9, 1), SENT)
    assert drain(connection, jar(Added)).counts == {"handled": 1}


def exempt(how: str) -> Component:
    """Return a component whose entities are not made from events."""
    component = Component("jar", entity=None if how == "none" else Jar, id="jar_id")
    once = None if how == "none" else StateBased()

    @component.handle(Put, once=once)
    def put(command: Put, entity: Any, context: Any) -> CoinPut:
        return CoinPut(command.put_id)

    return component


@pytest.mark.parametrize("how", ["none", "states"])
def test_a_component_that_makes_no_entities_from_events_is_exempt(connection, store, how):
    """It reads no event."""
    raw(connection, "jar-1", "Renamed", {})
    store.write(puts(0, 1), SENT)
    component = exempt(how)
    assert drain(connection, component).counts == {"handled": 1}
    assert check_deterministic(component, Put("1", "p")).events == [CoinPut("p")]


# What is returned and written


def returning(event: object, to: str | None = None) -> Component:
    """Return a component whose handler returns an event, or writes it to a stream."""
    component = Component("jar", entity=Jar, id="jar_id", attempts=1)
    component.message(Refused)

    @component.handle(Put, once=None)
    def put(command, entity, context):
        if to is None:
            return event
        return context.write(event, to)

    return component


@pytest.mark.parametrize("to", [None, "jar-2", "jar-3"], ids=["returned", "loaded", "elsewhere"])
def test_an_event_that_nobody_declared_is_refused(connection, store, to):
    """When a handler returns it, or writes it to the stream of another entity."""
    store.write([Put("1", "a")], SENT)
    if to == "jar-2":
        store.write([Put("2", "a")], "jar:command-2")
    dead = 2 if to == "jar-2" else 1
    assert drain(connection, returning(CoinPut("a"), to)).counts == {"dead": dead}
    (reason, _, error, _), *_ = letters(connection)
    assert reason == "handler"
    assert "wrote the event CoinPut, " in error
    assert "@jar.project(CoinPut)" in error
    assert store.stream_version("jar-1") == -1
    with pytest.raises(HandlerError, match="wrote the event CoinPut, which is not declared"):
        check_deterministic(returning(CoinPut("a"), to), Put("1", "a"))


def test_elsewhere_anything_may_be_written(connection, store):
    """Only the streams of the component's own entities are read by it."""
    elsewhere = ["other-1", "jar:command-1", "jar:other-1"]
    component = Component("jar", entity=Jar, id="jar_id", attempts=1)

    @component.handle(Put, once=None)
    def put(command, entity, context):
        for to in elsewhere:
            context.write(CoinPut("a"), to)

    component.ignore("CoinPut")
    store.write([Put("1", "a")], SENT)
    drain(connection, component)
    assert [store.last_message(to).type for to in elsewhere] == ["CoinPut"] * 3


def test_an_ignored_event_may_be_returned(connection, store):
    """It is declared to leave the entity as it is."""
    component = returning(CoinPut("a"))
    component.ignore("CoinPut")
    store.write(puts(0, 2), SENT)
    assert drain(connection, component).counts == {"handled": 2}


@pytest.mark.parametrize("once", [None, StateBased()], ids=["events", "states"])
def test_a_handler_with_states_is_exempt_alone(connection, store, once):
    """Beside one that gets entities made from events, its events must be known too."""
    component = Component("jar", entity=Jar, id="jar_id", attempts=1)
    component.handle(Put, once=StateBased())(lambda *_: CoinPut("a"))
    component.handle(Begin, once=once)(lambda *_: None)
    store.write([Put("1", "a")], SENT)
    outcome = "dead" if once is None else "handled"
    assert drain(connection, component).counts == {outcome: 1}


# Annotations


class Base:
    """No dataclass, so that nothing is known of what is derived from it."""


@dataclass(frozen=True)
class Former:
    put_id: str


@dataclass(frozen=True)
class Derived(Former):
    pass


def test_check_names_the_events_that_are_annotated_and_not_declared():
    """All of them at once, each with the command of its handler."""
    component = Component("jar", entity=Jar, id="jar_id")

    @component.initiate(Begin)
    def begin(command: Begin, context: Any) -> list[CoinPut | Refused]: ...

    @component.handle(Put, once=None)
    def put(command: Put, entity: Any, context: Any) -> Added | CoinPut | None: ...

    component.project(Added)(lambda entity, event: None)
    with pytest.raises(DeclarationError) as caught:
        component.check()
    problem = str(caught.value)
    assert (
        "not declared: CoinPut (of Begin), Refused (of Begin); declare each with @jar.project"
        in problem
    )
    component.message(CoinPut)
    component.ignore("Refused")
    component.check()


@pytest.mark.parametrize("hint", [Base, Former, Any, "Missing", object, list[Any], None])
def test_an_annotation_that_leaves_it_open_is_accepted(hint):
    """A class that others are derived from may stand for one of them."""
    component = Component("jar", entity=Jar, id="jar_id")

    def put(command, entity, context): ...

    put.__annotations__["return"] = hint
    component.handle(Put, once=None)(put)
    component.check()


# Starting


def test_a_store_with_unknown_events_is_refused_at_the_start(connection, store):
    """With all the types at once; nothing is handled."""
    for n in range(7):
        raw(connection, f"jar-{n % 2}", f"Type{n}", {})
    raw(connection, "jar-1", "Added", {"putId": "p"})
    store.write(puts(0, 1), SENT)
    component = jar(Added)
    with pytest.raises(DeclarationError) as caught:
        drain(connection, component)
    problem = str(caught.value)
    assert "does not declare: Type0, Type1, Type2, Type3, Type4 and 2 more; " in problem
    assert "former_names='Type0'" in problem
    assert connection.execute("SELECT count(*) FROM reservation.positions").fetchone() == (0,)
    with pytest.raises(DeclarationError):
        consumers.run(component, address(connection))
    component.ignore(*[f"Type{n}" for n in range(7)])
    assert drain(connection, component).counts == {"handled": 1}


def fill(connection, first, middle, last):
    """Store 7,000 events in the streams of 7 entities, of which a few have types of their own."""
    connection.execute(
        "INSERT INTO message_store.messages (id, stream_name, position, type, data)"
        " SELECT gen_random_uuid(), 'jar-' || n %% 7, n / 7,"
        " CASE n WHEN 0 THEN %s WHEN 33 THEN %s WHEN 6999 THEN %s ELSE 'Added' END,"
        ' \'{"putId": "p"}\' FROM generate_series(0, 6999) AS n',
        [first, middle, last],
    )


def test_both_ends_of_a_large_category_are_looked_at_at_the_start(connection):
    """And some places between them."""
    fill(connection, "First", "Lost", "Last")
    with pytest.raises(DeclarationError, match="does not declare: First, Last; "):
        drain(connection, jar(Added))


def test_one_that_is_not_looked_at_is_found_when_it_is_read(connection, store):
    """Between the places that are looked at."""
    fill(connection, "Added", "Lost", "Added")
    store.write([Put(str(n), "p") for n in range(7)], SENT)
    assert drain(connection, jar(Added)).counts == {"handled": 6, "dead": 1}
    ((reason, entity, *_),) = letters(connection)
    assert (reason, entity) == ("unknown_event", f"jar-{33 % 7}")


def test_a_long_name_of_a_type_is_cut(connection, store):
    """In the error of the start, and in the letter of a command."""
    store.write(Begin("0"), "jar:command-0")
    name = "x" * 9000 + "\n"
    assert drain(connection, beginning(connection, Put("1", "a"), name=name)).counts["dead"] == 1
    ((_, _, error, _),) = letters(connection)
    assert len(error) < 2000
    assert "\n" not in error
    with pytest.raises(DeclarationError) as caught:
        drain(connection, jar(Added))
    assert len(str(caught.value)) < 2000
