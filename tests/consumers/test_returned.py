"""What is stored is what the handler returned; nothing it was given leads into a cache."""

import enum
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from reservation import Component, Metadata
from reservation.errors import EncodeError
from reservation.strategies import StateBased
from reservation.testing import check_deterministic
from tests.apps.bank import drain

SENT = "cart:command-1"

of_sizes = pytest.mark.parametrize("size", [1, 1000])
of_strategies = pytest.mark.parametrize(
    ("once", "size"),
    [(None, 1), (None, 1000), (StateBased(), 1000)],
    ids=["events, one by one", "events", "states"],
)


@dataclass(frozen=True)
class Put:
    cart_id: str
    lines: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class CheckOut:
    cart_id: str


@dataclass(frozen=True)
class Added:
    lines: list[str]


@dataclass(frozen=True)
class CheckedOut:
    lines: list[str]


@dataclass
class Cart:
    lines: list[str] = field(default_factory=list)
    by_name: dict[str, list[int]] = field(default_factory=dict)


def lines(store, stream_name="cart-1"):
    """Return the lines in the messages of a stream."""
    return [message.decode(Added).lines for message in store.read_stream(stream_name)]


def cart():
    """Return a component whose events share the list that its entity keeps."""
    component = Component("cart", entity=Cart, id="cart_id")

    @component.handle(CheckOut, once=None)
    def check_out(command, entity, context):
        return CheckedOut(entity.lines)

    @component.project(Added)
    def added(entity, event):
        entity.lines = event.lines

    @component.project(CheckedOut)
    def checked_out(entity, event):
        entity.lines.clear()

    return component


@of_sizes
def test_a_projector_does_not_change_what_is_stored(connection, store, size):
    """A projector that clears a list shared with the event changes nothing stored."""
    component = cart()
    component.handle(Put, once=None)(
        lambda command, entity, context: Added(entity.lines + command.lines)
    )
    store.write([Put("1", ["a"]), Put("1", ["b"]), CheckOut("1"), CheckOut("1")], SENT)
    drain(connection, component, batch_size=size)
    assert lines(store) == [["a"], ["a", "b"], ["a", "b"], []]


@of_sizes
def test_a_later_message_does_not_change_what_is_stored(connection, store, size):
    """Later messages that extend a list shared with an event change nothing stored."""
    component = Component("cart", entity=Cart, id="cart_id")

    @component.handle(Put, once=None)
    def put(command, entity, context):
        return Added(command.lines)

    @component.project(Added)
    def added(entity, event):
        if entity.lines:
            entity.lines.extend(event.lines)
        else:
            entity.lines = event.lines

    store.write([Put("1", [name]) for name in "abcd"], SENT)
    drain(connection, component, batch_size=size)
    assert lines(store) == [["a"], ["b"], ["c"], ["d"]]


@of_strategies
def test_messages_are_stored_as_they_were_when_the_handler_returned(connection, store, size, once):
    """Later changes to an event or a further message are not stored."""
    kept = []
    component = Component("cart", entity=Cart, id="cart_id", replies_to=["till"])
    component.message(Added)

    @component.handle(Put, once=once)
    def put(command, entity, context):
        kept.extend(command.lines)
        context.write(Added(kept), "audit-1")
        context.reply(Added(kept))
        return [Added(kept), Added(kept)]

    metadata = Metadata(reply_stream_name="till-1")
    store.write([Put("1", ["a"]), Put("1", ["b"])], SENT, metadata=metadata)
    drain(connection, component, batch_size=size)
    expected = [["a"], ["a", "b"]]
    assert (lines(store, "audit-1"), lines(store, "till-1")) == (expected, expected)
    assert lines(store) == [["a"], ["a"], ["a", "b"], ["a", "b"]]


@pytest.mark.parametrize("returns", [True, False], ids=["an event", "nothing"])
@of_sizes
def test_a_handler_works_on_a_copy_of_its_entity(connection, store, size, returns):
    """A handler works on a copy of its entity, which only projectors change."""
    component = Component("cart", entity=Cart, id="cart_id")

    @component.handle(Put, once=None)
    def put(command, entity, context):
        seen = Added([*entity.lines, *map(str, entity.by_name.get("a", []))])
        entity.lines.append("mine")
        entity.by_name.setdefault("a", []).append(1)
        entity.extra = "mine"
        context.write(seen, "seen-1")
        return Added(command.lines) if returns else None

    @component.project(Added)
    def added(entity, event):
        assert not hasattr(entity, "extra")
        entity.lines.extend(event.lines)
        entity.by_name.setdefault("a", []).append(2)

    store.write([Put("1", ["a"]), Put("1", ["b"]), Put("1", ["c"])], SENT)
    drain(connection, component, batch_size=size)
    stored = [[], ["a", "2"], ["a", "b", "2", "2"]] if returns else [[], [], []]
    assert lines(store, "seen-1") == stored


@of_sizes
def test_objects_that_a_handler_keeps_lead_nowhere(connection, store, size):
    """Changes to an entity or command that a handler kept have no effect."""
    kept: list[Any] = []
    component = Component("cart", entity=Cart, id="cart_id")

    @component.handle(Put, once=None)
    def put(command, entity, context):
        seen = Added(list(entity.lines))
        for holder in kept:
            holder.lines.append("changed")
        kept[:] = [command, entity, returned := Added(command.lines)]
        context.write(seen, "seen-1")
        return returned

    @component.project(Added)
    def added(entity, event):
        entity.lines = entity.lines or event.lines

    store.write([Put("1", ["a"]), Put("1", ["b"]), Put("1", ["c"])], SENT)
    drain(connection, component, batch_size=size)
    assert lines(store, "seen-1") == [[], ["a"], ["a"]]
    assert lines(store) == [["a"], ["b"], ["c"]]


@of_strategies
def test_a_handler_that_raises_leaves_no_trace(connection, store, size, once):
    """After a failure the next attempt gets the command and the entity unchanged."""
    seen = []
    component = Component("cart", entity=Cart, id="cart_id", attempts=9)

    @component.handle(Put, once=once)
    def put(command, entity, context):
        seen.append((list(command.lines), list(entity.lines)))
        command.lines.append("mine")
        entity.lines.append("mine")
        context.write(Added(["never"]), "audit-1")
        if len(seen) < 4:
            raise ZeroDivisionError
        entity.lines.clear()

    store.write([Put("1", ["a"]), Put("1", ["b"])], SENT)
    assert drain(connection, component, batch_size=size).counts == {"handled": 2}
    assert seen == [(["a"], [])] * 4 + [(["b"], [])]
    assert lines(store, "audit-1") == [["never"], ["never"]]


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(("hint", "value"), [(int, True), (str, Text("a")), (int, 1.5)])
def test_a_field_holds_what_its_type_says(hint, value):
    """A value that would be read back as something else is refused."""
    component = Component("cart", entity=Cart, id="cart_id")
    happened = event_of(hint)
    component.message(happened)
    component.handle(Put, once=None)(lambda command, entity, context: happened(value))
    with pytest.raises(EncodeError, match="Happened"):
        check_deterministic(component, Put("1"))


# An entity is the same whether its events were read or have just been returned.


class Size(enum.Enum):
    SMALL = "s"


@dataclass
class Part:
    names: list[str]


@dataclass(frozen=True)
class Noted:
    value: Any


def event_of(hint: Any, default: Any = None) -> Any:
    """Return a class of events with a field of a type."""

    @dataclass
    class Happened:
        value: hint
        other: str = "x"

    return Happened


VALUES: dict[str, tuple[Any, Any]] = {
    "an int for a float": (float, 1),
    "a member of an enum": (Size, Size.SMALL),
    "the value of a member": (Size, "s"),
    "a tuple for a list": (list[str], ("a", "b")),
    "a list for a tuple": (tuple[str, ...], ["a"]),
    "a float for a Decimal": (Decimal, 1.5),
    "a Decimal with an exponent": (Decimal, Decimal("1E+2")),
    "a negative zero": (float, -0.0),
    "negative zeros": (list[float], [-0.0, 1.0, -0.0]),
    "a negative zero as a Decimal": (Decimal, Decimal("-0.00")),
    "a dict in another order": (dict[str, int], {"bb": 1, "é": 2, "a": 3}),
    "a dict of dicts": (dict[str, dict[str, int]], {"bb": {"dd": 1, "c": 2}, "a": {}}),
    "a Decimal of any type": (Any, Decimal("1.50")),
    "a large float of any type": (Any, 1e16),
    "a large float in a union": (int | float, 1e16),
    "nested values of any type": (Any, {"b": [1.0, {"z": (1,), "y": None}], "a": -0.0}),
    "a time of a zone": (datetime, datetime(2026, 7, 1, tzinfo=ZoneInfo("Europe/Berlin"))),
    "a time of a fold": (datetime, datetime(2026, 7, 1, tzinfo=UTC, fold=1)),
    "a dataclass": (Part, Part(["a"])),
}


def test_an_entity_is_what_its_events_make_of_it_when_they_are_read(connection, store):
    """A projector gets what the store will return later, whatever the type of the value."""
    happened = {}
    for n, (name, (hint, _)) in enumerate(VALUES.items()):
        happened[name] = event_of(hint)
        happened[name].__name__ = f"Happened{n}"

    @dataclass
    class Seen:
        values: list[Any] = field(default_factory=list)

    component = Component("cart", entity=Seen, id="cart_id")

    @component.handle(Put, once=None)
    def put(command, entity, context):
        context.write(Noted(repr(entity.values)), f"seen-{command.cart_id}")
        return happened[command.cart_id](VALUES[command.cart_id][1])

    def seen_as(event):
        return type(event.value).__name__, event.value, vars(event)

    for event in happened.values():
        component.project(event)(lambda entity, event: entity.values.append(seen_as(event)))
    for times in (2, 1):
        for name in VALUES:
            store.write([Put(name)] * times, f"cart:command-{name}")
        drain(connection, component)
    seen, expected = {}, {}
    for name in VALUES:
        read = next(store.read_stream(f"cart-{name}")).decode(happened[name])
        expected[name] = [repr([seen_as(read)] * n) for n in range(3)]
        seen[name] = [one.decode(Noted).value for one in store.read_stream(f"seen-{name}")]
    assert seen == expected
