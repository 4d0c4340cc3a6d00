"""A handler's execution: whether it is awaited, how many at a time, and its policies."""

import inspect
from typing import Any

from reservation.errors import DeclarationError
from reservation.handlers.breaker import Breaker, check_breaker
from reservation.handlers.retry import Retry, check_retry

# How many calls of an async handler run at a time, unless its declaration says otherwise.
CONCURRENCY = 10

# More open calls than this run out of file descriptors long before they run out of work.
MOST_CONCURRENT = 10_000


def is_async(handler: Any) -> bool:
    """Return whether a handler is to be awaited: a function or an object with `async def`."""
    call = handler if inspect.isroutine(handler) else getattr(handler, "__call__", None)  # noqa: B004  its own is wanted
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)


def check_execution(
    component: str,
    message: type,
    handler: Any,
    *,
    retry: Retry | None,
    breaker: Breaker | None,
    concurrency: int | None,
) -> int | None:
    """Make sure that a handler can be called as its declaration says."""
    check_retry(component, message, retry)
    check_breaker(component, message, breaker)
    name = message.__name__
    if not is_async(handler):
        if concurrency is not None:
            raise DeclarationError(
                f"{component}: concurrency={concurrency!r} of {name} is for handlers with async "
                f"def, and its handler is called one message at a time; declare it with async def, "
                f"or leave concurrency= out"
            )
        return None
    if concurrency is None:
        return CONCURRENCY
    if isinstance(concurrency, bool) or not isinstance(concurrency, int):
        raise DeclarationError(
            f"{component}: concurrency={concurrency!r} of {name} is not a whole number; write "
            f"concurrency=50"
        )
    if not 1 <= concurrency <= MOST_CONCURRENT:
        raise DeclarationError(
            f"{component}: concurrency={concurrency} of {name} is not from 1 to {MOST_CONCURRENT}"
        )
    return concurrency
