"""The checks of a series when it is declared, and of what its function is annotated to return."""

from typing import Any

from reservation.declaration.table import Declarations
from reservation.errors import DeclarationError
from reservation.handlers.checks.annotations import accepts, annotations
from reservation.handlers.checks.declaration_checks import check_tick_function
from reservation.messages.stream_name import MAX_BYTES
from reservation.raised import note_own_code
from reservation.recurring.due import MISSED
from reservation.recurring.series import Series
from reservation.recurring.timetable import Timetable
from reservation.serialization.struct_types import shown

# Of a name, in bytes: the tick's key is part of a stream's name.
_LONGEST = MAX_BYTES // 10


# Any: a wrong use gives anything.
def check_timetable(component: str, expression: Any, zone: Any, missed: Any) -> Timetable:
    """Return the timetable of a series, once it has times, and missed ticks are decided on."""
    if callable(expression):
        above = getattr(expression, "__name__", "a function")
        raise DeclarationError(
            f"{component}: @{component}.every above {above} has no parentheses; write "
            f"@{component}.every('0 2 * * *')"
        )
    if missed not in MISSED:
        raise DeclarationError(
            f"{component}: missed={missed!r} of {expression!r} is not one of "
            f"{', '.join(map(repr, MISSED))}"
        )
    try:
        return Timetable(expression, zone)
    except ValueError as error:
        raise DeclarationError(f"{component}: {error}") from None


def add_series(
    declared: Declarations, timetable: Timetable, missed: Any, name: str | None, function: Any
) -> None:
    """Add a series to the table, once its function can be called and its name is its own."""
    component = declared.name
    name = getattr(function, "__name__", "") if name is None else name
    is_name = isinstance(name, str) and name.isprintable() and name.strip() == name
    if not (is_name and name.encode(errors="replace")[:_LONGEST] == name.encode(errors="replace")):
        raise DeclarationError(
            f"{component}: {str(name)[:100]!r} cannot be the name of a series; give name= a text "
            f"of up to {_LONGEST} bytes that can be printed"
        )
    if name in ("", "<lambda>"):
        raise DeclarationError(
            f"{component}: the function of the series {timetable.expression!r} has no name; give "
            f"the series one with name="
        )
    if name in declared.series:
        raise DeclarationError(
            f"{component}: there are two series {name!r}; give one another name with name="
        )
    check_tick_function(component, name, function)
    note_own_code(getattr(function, "__module__", None))
    declared.series[name] = Series(component, name, timetable, missed, function)


def check_returned_commands(declared: Declarations) -> None:
    """Make sure that functions of series are not annotated to return anything but commands."""
    for one in declared.series.values():
        hint = annotations(one.function).get("return", Any)
        if not any(accepts(hint, command) for command in declared.commands):
            raise DeclarationError(
                f"{declared.name}: the function of the series {one.name!r} is annotated to return "
                f"{shown(hint)}; let it return a command that {declared.name} handles, or None"
            )
