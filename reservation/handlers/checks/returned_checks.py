"""The events that handlers are annotated to return, and whether they are declared."""

from collections.abc import Callable, Mapping
from typing import Any

from reservation.errors import DeclarationError
from reservation.handlers.checks.annotations import annotations, leaves_of
from reservation.serialization.fields import is_message_class


def check_events(
    component: str, handlers: Mapping[str, Any], is_known: Callable[[type], bool]
) -> None:
    """Make sure that a component knows the events that its handlers are annotated to return.

    A class that another is derived from is accepted, because a handler may return the other one.
    """
    unknown: dict[str, str] = {}
    for command, handler in handlers.items():
        for leaf in leaves_of(annotations(handler).get("return", Any)):
            if is_message_class(leaf) and not leaf.__subclasses__() and not is_known(leaf):
                unknown.setdefault(leaf.__name__, command)
    if unknown:
        named = ", ".join(f"{event} (of {command})" for event, command in unknown.items())
        first = next(iter(unknown))
        raise DeclarationError(
            f"{component}: handlers return events that are not declared: {named}; declare each "
            f"with @{component}.project({first}), or with {component}.message({first}) if it does "
            f"not change the entity"
        )


def returned_classes(handler: Any) -> frozenset[type] | None:
    """Return the classes of events that a handler is annotated to return; None if that is open."""
    hints = annotations(handler)
    if "return" not in hints:
        return None
    leaves = {leaf for leaf in leaves_of(hints["return"]) if leaf is not type(None)}
    if any(not is_message_class(leaf) or leaf.__subclasses__() for leaf in leaves):
        return None
    return frozenset(leaves)
