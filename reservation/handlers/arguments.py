"""Checks of what policies of handlers are given: numbers, time spans and exceptions.

An option is named with its policy, such as ``Retry: attempts``.
"""

from collections.abc import Iterable
from datetime import timedelta

from reservation.errors import DeclarationError
from reservation.serialization.durations import time_span, written

_SHORTEST = timedelta(milliseconds=1)


def whole_number(option: str, given: object, most: int, example: str, way_out: str) -> int:
    """Return a number that was given for an option of a policy; from 1 to the most."""
    if isinstance(given, bool) or not isinstance(given, int):
        name = option.rpartition(" ")[2]
        raise DeclarationError(f"{option}={given!r} is not a whole number; write {name}={example}")
    if not 1 <= given <= most:
        raise DeclarationError(f"{option}={given} is not from 1 to {most}; {way_out}")
    return given


def interval(option: str, given: str | timedelta) -> timedelta:
    """Return a time span that was given for an option of a policy; at least a millisecond."""
    try:
        span = time_span(given)
    except ValueError as error:
        raise DeclarationError(f"{option}={error}") from None
    if span < _SHORTEST:
        raise DeclarationError(f"{option}={written(span)} is too short; give it at least 1ms")
    return span


def exceptions(
    policy: str, on: type[Exception] | Iterable[type[Exception]], way_out: str
) -> tuple[type[Exception], ...]:
    """Return the exceptions that were given as ``on=`` of a policy; at least one."""
    given: tuple[object, ...] = (on,) if not isinstance(on, Iterable) else tuple(on)
    for one in given:
        if not isinstance(one, type) or not issubclass(one, Exception):
            shown = one.__name__ if isinstance(one, type) else repr(one)
            raise DeclarationError(
                f"{policy}: on= names {shown}, which is not an exception derived from Exception"
            )
    if not given:
        raise DeclarationError(f"{policy}: on=() names no exception; {way_out}")
    return tuple(one for one in given if isinstance(one, type) and issubclass(one, Exception))
