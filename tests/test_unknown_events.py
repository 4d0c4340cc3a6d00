"""Nothing unknown in one's own stream: an event that nobody declared is not passed over."""

from dataclasses import dataclass
from typing import Any

import pytest

import consumers
from reservation import Component, MessageIdInEvents, PositionInEvents, StateBased, connect
from reservation.errors import DeclarationError, HandlerError, UnknownEventError
from reservation.maintenance.event_types import check_event_types, unknown_types
from reservation.testing import check_deterministic
from tests.bank import address, batch, drain
from tests.changing import SENT, Added, CoinPut, Jar, Put, Refused, jar, puts, raw
from tests.processes import run_cli

SIZES = [1, 2, 1000]


@dataclass(frozen=True)
class Begin:
    jar_id: str


def letters(connection):
    """Return the letters of the store: reason, entity, error and attempts of each."""
    return connection.execute(
        "SELECT reason, entity, error, attempts FROM reservation.dead_letters"
        " ORDER BY global_position"
    ).fetchall()


def beginning(connection, *commands):
    """Return a jar with a command that writes an unknown event to jar-1, and sends commands."""
    component = jar(Added)

    @component.handle(Begin)
    def begin(command, entity, context):
        with connect(address(connection), autocommit=True) as other:
            raw(other, "jar-1", "Renamed", {"putId": "p"})
        for one in commands:
            context.write(one, f"jar:command-{one.jar_id}")

    return component


@pytest.mark.parametrize("size", SIZES)
def test_a_command_of_an_entity_with_an_unknown_event_is_a_dead_letter(connection, store, size):
    """Whatever it shares its batch with; its entity waits, and others go on."""
    store.write(Begin("0"), "jar:command-0")
    sent = [Put("2", "a"), Put("1", "b"), Put("2", "c"), Put("1", "d")]
    component = beginning(connection, *sent)
    done = consumers.drain(component, address(connection), batch_size=size)
    assert done.counts == {"handled": 3, "dead": 1, "parked": 1}
    (reason, entity, error, attempts), (parked, *_) = letters(connection)
    assert (reason, entity, attempts, parked) == ("unknown_event", "jar-1", 1, "parked")
    assert "nothing is declared of Renamed at jar-1, global position" in error
    assert "was='Renamed'" in error
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
    connection.execute("UPDATE reservation.dead_letters SET state = 'retry' WHERE state = 'dead'")
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
    component.check()
    assert unknown_types(connection, component) == []
    assert drain(connection, component).counts == {"handled": 1}
    assert check_deterministic(component, Put("1", "p")).events == [CoinPut("p")]


# What is returned and written


def returning(event: object, to: str | None = None) -> Component:
    """Return a component whose handler returns an event, or writes it to a stream."""
    component = Component("jar", entity=Jar, id="jar_id")
    component.message(Refused)

    @component.handle(Put)
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
    one = batch(connection, "jar:command", returning(CoinPut("a"), to))
    with pytest.raises(HandlerError, match=r"wrote the event CoinPut, .*@jar\.project\(CoinPut\)"):
        one.run(10)
    with pytest.raises(HandlerError, match="wrote the event CoinPut, which is not declared"):
        check_deterministic(returning(CoinPut("a"), to), Put("1", "a"))


def test_it_makes_its_command_a_dead_letter(connection, store, monkeypatch):
    """As any failure of a handler does."""
    monkeypatch.setattr("consumers.runtime.backoff.Backoff.next", lambda self: 0)
    store.write([Put("1", "a")], SENT)
    assert drain(connection, returning(CoinPut("a"))).counts == {"dead": 1}
    ((reason, *_, attempts),) = letters(connection)
    assert (reason, attempts) == ("handler", 3)
    assert store.stream_version("jar-1") == -1


@pytest.mark.parametrize("to", ["other-1", "jar:command-1", "jar:other-1"])
def test_elsewhere_anything_may_be_written(connection, store, to):
    """Only the streams of the component's own entities are read by it."""
    store.write([Put("1", "a")], SENT)
    component = returning(CoinPut("a"), to)
    component.ignore("CoinPut")
    batch(connection, "jar:command", component).run(10)
    assert store.last_message(to).type == "CoinPut"


def test_an_ignored_event_may_be_returned(connection, store):
    """It is declared to leave the entity as it is."""
    component = returning(CoinPut("a"))
    component.ignore("CoinPut")
    store.write(puts(0, 2), SENT)
    assert drain(connection, component).counts == {"handled": 2}


@pytest.mark.parametrize("once", [None, StateBased()], ids=["events", "states"])
def test_a_handler_with_states_is_exempt_alone(connection, store, once):
    """Beside one that gets entities made from events, its events must be known too."""
    component = Component("jar", entity=Jar, id="jar_id")
    component.handle(Put, once=StateBased())(lambda *_: CoinPut("a"))
    component.handle(Begin, once=once)(lambda *_: None)
    store.write([Put("1", "a")], SENT)
    one = batch(connection, "jar:command", component)
    if once is None:
        with pytest.raises(HandlerError, match="wrote the event CoinPut"):
            one.run(10)
    else:
        assert one.run(10).counts == {"handled": 1}


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

    @component.handle(Put)
    def put(command: Put, entity: Any, context: Any) -> Added | CoinPut | None: ...

    component.project(Added)(lambda entity, event: None)
    with pytest.raises(DeclarationError) as caught:
        component.check()
    problem = str(caught.value)
    assert "not declared: CoinPut (of Begin), Refused (of Begin); declare @jar.project" in problem
    component.message(CoinPut)
    component.ignore("Refused")
    component.check()


@pytest.mark.parametrize("hint", [Base, Former, Any, "Missing", object, list[Any], None])
def test_an_annotation_that_leaves_it_open_is_accepted(hint):
    """A class that others are derived from may stand for one of them."""
    component = Component("jar", entity=Jar, id="jar_id")

    def put(command, entity, context): ...

    put.__annotations__["return"] = hint
    component.handle(Put)(put)
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
    assert "was='Type0'" in problem
    assert connection.execute("SELECT count(*) FROM reservation.positions").fetchone() == (0,)
    with pytest.raises(DeclarationError):
        consumers.run(component, address(connection))
    component.ignore(*[f"Type{n}" for n in range(7)])
    assert drain(connection, component).counts == {"handled": 1}


def test_the_sample_takes_one_statement_of_few_rows(connection):
    """Whatever the size of the category, both its ends are in it."""
    connection.execute(
        "INSERT INTO message_store.messages (id, stream_name, position, type, data)"
        " SELECT gen_random_uuid(), 'jar-1', n, CASE n WHEN 0 THEN 'First' WHEN 6999 THEN 'Last'"
        " ELSE 'Added' END, '{}' FROM generate_series(0, 6999) AS n"
    )
    assert unknown_types(connection, jar(Added)) == ["First", "Last"]


def test_start_says_so_in_one_line(connection, store, database_url):
    """With the status of a command that could not run."""
    raw(connection, "account-123", "MoneyDeposited", {})
    done = run_cli("start", "bank:account", "--database-url", database_url)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: account has events of types")
    assert "MoneyDeposited" in line


def test_an_empty_store_knows_everything(connection):
    """There is nothing to look at."""
    check_event_types(connection, jar(Added))


def test_a_long_name_of_a_type_is_cut(connection):
    """In the error of the start, and in that of a command."""
    raw(connection, "jar-1", "x" * 9000 + "\n", {})
    with pytest.raises(DeclarationError) as caught:
        check_event_types(connection, jar(Added))
    assert len(str(caught.value)) < 2000
    raw(connection, SENT, "Put", {"jarId": "1", "putId": "p"})
    with pytest.raises(UnknownEventError) as raised:
        batch(connection, "jar:command", jar(Added)).run(1)
    assert "\n" not in str(raised.value)


def test_one_that_is_lost_in_the_sample_is_found_when_it_is_read(connection, store):
    """Between the places that are looked at."""
    connection.execute(
        "INSERT INTO message_store.messages (id, stream_name, position, type, data)"
        " SELECT gen_random_uuid(), 'jar-' || n % 7, n / 7, CASE n WHEN 33 THEN 'Lost'"
        " ELSE 'Added' END, '{\"putId\": \"p\"}' FROM generate_series(0, 6999) AS n"
    )
    component = jar(Added)
    assert unknown_types(connection, component) == []
    store.write([Put(str(n), "p") for n in range(7)], SENT)
    done = drain(connection, component)
    assert done.counts == {"handled": 6, "dead": 1}
    ((reason, entity, *_),) = letters(connection)
    assert (reason, entity) == ("unknown_event", f"jar-{33 % 7}")


def test_a_consumer_that_stops_on_errors_stops(connection, store):
    """It names the event."""
    raw(connection, "jar-1", "Renamed", {})
    store.write(puts(0, 1), SENT)
    with pytest.raises(UnknownEventError, match="nothing is declared of Renamed at jar-1"):
        batch(connection, "jar:command", jar(Added)).run(1)
