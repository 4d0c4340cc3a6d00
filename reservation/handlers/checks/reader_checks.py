"""Checks of the functions of a read model when they are declared."""

import typing
from typing import Any

from psycopg import Connection

from reservation.errors import DeclarationError
from reservation.handlers.checks.annotations import annotations, leaves_of
from reservation.handlers.checks.declaration_checks import check_function, named
from reservation.handlers.reading import ReadContext, Recorded


def check_reader(model: str, event: type, handler: Any, *, many: bool) -> None:
    """Make sure that a function can be the handler of an event, or of several at once."""
    what = f"handler of {event.__name__}"
    first = ("events", list) if many else ("event", event)
    check_function(model, what, handler, [first, ("context", ReadContext)])
    if many and not _takes(annotations(handler), event):
        raise DeclarationError(
            f"{named(model, what, handler)} is annotated to take other events; write "
            f"Sequence[Recorded[{event.__name__}]]"
        )
    if any(
        leaf not in (Any, type(None)) for leaf in leaves_of(annotations(handler).get("return", Any))
    ):
        raise DeclarationError(
            f"{named(model, what, handler)} is annotated to return something; a handler of a read "
            f"model changes rows, and returns None"
        )


def _takes(known: dict[str, Any], event: type) -> bool:
    """Return whether the first annotation may be that of recorded events of a class."""
    elements = typing.get_args(next(iter(known.values()), Any))
    if len(elements) != 1 or not isinstance(typing.get_origin(elements[0]) or elements[0], type):
        return True
    if typing.get_origin(elements[0]) is not Recorded:
        return elements[0] is Recorded
    (of,) = typing.get_args(elements[0])
    return not isinstance(of, type) or issubclass(event, of)


def check_tables(model: str, function: Any) -> None:
    """Make sure that a function can make the tables of a read model."""
    check_function(model, "function of tables", function, [("connection", Connection)])
