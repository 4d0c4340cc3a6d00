"""`check_deterministic` treats what a handler returned as the consumers do."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from reservation import Component, Context, MessageStore
from reservation.errors import DeclarationError, EncodeError, HandlerError
from reservation.testing import NotDeterministicError, check_deterministic
from tests.bank import batch


@dataclass
class Fill:
    box_id: str
    items: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Filled:
    items: list[str]


@dataclass(frozen=True)
class Odd:
    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise ValueError


class Box:
    """A class that is no dataclass, and that JSON cannot express."""

    def __init__(self) -> None:
        self.items: list[str] = []


def box(
    handler: Callable[..., Any], *, entity: type | None = Box, starts: bool = False
) -> Component:
    component = Component("box", entity=entity, id="box_id")
    if starts:
        component.initiate(Fill)(lambda command, context: handler(command, None, context))
    else:
        component.handle(Fill)(lambda command, entity, context: handler(command, entity, context))
    if entity is not None:
        component.project(Filled)(lambda entity, event: entity.items.extend(event.items))
        component.project(Odd)(lambda entity, event: None)
    return component


def negative(command: Any, entity: Any, context: Any) -> Odd:
    event = Odd(1)
    object.__setattr__(event, "n", -1)
    return event


def wrong_reply(command: Any, entity: Any, context: Any) -> None:
    context.reply(Filled([]))


def wrong_write(command: Any, entity: Any, context: Any) -> None:
    context.write(Filled([1]), "other-1")  # type: ignore[list-item]


REFUSED: dict[str, tuple[Callable[..., Any], type[Exception], str]] = {
    "a text": (lambda command, entity, context: "text", HandlerError, "returned a str"),
    "a class": (lambda command, entity, context: Filled, HandlerError, "returned a type"),
    "a dict": (lambda command, entity, context: {}, HandlerError, "returned a dict"),
    "an iterator": (lambda *_: (Filled([]) for _ in "a"), HandlerError, "returned a generator"),
    "a text among events": (lambda *_: [Filled([]), "a"], HandlerError, "returned a str"),
    "its command": (lambda command, *_: command, HandlerError, "returned the command Fill"),
    "another command": (lambda *_: [Fill("2")], HandlerError, "returned the command Fill"),
    "no form": (lambda *_: Filled([object()]), EncodeError, "Filled for box-1"),  # type: ignore[list-item]
    "not to be read": (negative, HandlerError, "Odd .*cannot be read again"),
    "no reply stream": (wrong_reply, HandlerError, "nowhere to reply"),
    "a message without a form": (wrong_write, EncodeError, "Filled for other-1"),
}


@pytest.mark.parametrize(("handler", "kind", "problem"), REFUSED.values(), ids=REFUSED)
def test_what_the_consumers_refuse_is_refused(connection, store, handler, kind, problem):
    """What the consumers refuse is refused with the same error."""
    component = box(handler)
    with pytest.raises(kind, match=problem) as checked:
        check_deterministic(component, Fill("1"))
    store.write(Fill("1"), "box:command-1")
    with pytest.raises(kind, match=problem) as consumed:
        batch(connection, "box:command", component).run(10)
    assert type(checked.value) is type(consumed.value)
    assert str(checked.value) == str(consumed.value)


def test_an_initiation_is_checked_too(connection: Any, store: MessageStore):
    """An initiation is checked without an entity, and must return an event."""
    done = check_deterministic(box(lambda *_: Filled(["a"]), starts=True), Fill("1"))
    assert done.events == [Filled(["a"])]
    with pytest.raises(HandlerError, match="returned no event; a command that initiates must"):
        check_deterministic(box(lambda *_: None, starts=True), Fill("1"))
    counts = iter(range(2))
    with pytest.raises(NotDeterministicError):
        check_deterministic(box(lambda *_: Odd(next(counts)), starts=True), Fill("1"))


def test_a_component_without_an_entity_is_checked():
    """The handlers of a component without an entity get None."""
    seen = []
    component = box(lambda command, entity, context: seen.append(entity), entity=None)
    assert check_deterministic(component, Fill("1")).events == []
    assert seen == [None, None]


def test_an_entity_of_any_class_is_given_and_left_as_it_is():
    """Each call gets copies of the entity and the command."""
    state, command = Box(), Fill("1", ["a"])
    state.items.append("b")

    def handler(command: Fill, entity: Box, context: Context) -> Filled:
        items = [*entity.items, *command.items]
        entity.items.append("mine")
        command.items.append("mine")
        return Filled(items)

    done = check_deterministic(box(handler), command, state)
    assert done.events == [Filled(["b", "a"])]
    assert (state.items, command.items) == (["b"], ["a"])


def test_a_further_message_may_expect_a_version():
    """A further message may have an expected version where no state is stored."""

    def handler(command: Fill, entity: Box, context: Context) -> None:
        context.write(Filled([]), "other-1", expected_version=3)

    assert len(check_deterministic(box(handler), Fill("1")).context.writes) == 1


def test_a_command_without_a_handler_is_refused():
    """A command without a handler is refused."""
    component = Component("box", id="box_id")
    with pytest.raises(DeclarationError, match=r"box has no handler for Fill; declare one with"):
        check_deterministic(component, Fill("1"))
