"""`check_deterministic` treats what a handler returned as the consumers do."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from reservation import Component, Context
from reservation.errors import DeclarationError, HandlerError
from reservation.testing import NotDeterministicError, check_deterministic


@dataclass
class Fill:
    box_id: str
    items: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Filled:
    items: list[str]


class Box:
    """A class that is no dataclass, and that JSON cannot express."""

    def __init__(self) -> None:
        self.items: list[str] = []


def box(
    handler: Callable[..., Any], *, entity: type | None = Box, starts: bool = False
) -> Component[Any]:
    """Return a component with one handler."""
    component = Component("box", entity=entity, id="box_id")
    if starts:
        component.initiate(Fill)(lambda command, context: handler(command, None, context))
    else:
        component.handle(Fill, once=None)(
            lambda command, entity, context: handler(command, entity, context)
        )
    if entity is not None:
        component.project(Filled)(lambda entity, event: entity.items.extend(event.items))
    return component


def test_an_initiation_is_checked_too():
    """An initiation is checked without an entity, and must return an event."""
    done = check_deterministic(box(lambda *_: Filled(["a"]), starts=True), Fill("1"))
    assert done.events == [Filled(["a"])]
    with pytest.raises(HandlerError, match="returned no event; a command that initiates must"):
        check_deterministic(box(lambda *_: None, starts=True), Fill("1"))
    names = iter("ab")
    with pytest.raises(NotDeterministicError):
        check_deterministic(box(lambda *_: Filled([next(names)]), starts=True), Fill("1"))


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
