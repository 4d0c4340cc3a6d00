"""The header in the OpenAPI schema of a FastAPI application, whose endpoints depend on a request.

FastAPI takes the parameters of an endpoint from the signatures of its dependencies. Starlette is
all that the rest needs, so FastAPI is looked for only where the program has imported it.
"""

import inspect
import sys
from collections.abc import Callable
from typing import Annotated, Any, Generic, TypeVar

from starlette.requests import HTTPConnection

T = TypeVar("T")

_DESCRIPTION = (
    "A key of the client's for this request, the same whenever it is sent again: 1 to 255 "
    "characters, in quotes or without. The request takes effect once, and has one answer."
)


class Dependency(Generic[T]):
    """A static method of a request that names the header, if it is a dependency of FastAPI."""

    def __init__(self, function: Callable[[HTTPConnection], T]) -> None:
        self.__doc__ = function.__doc__
        self._function = function
        self._described: Callable[[HTTPConnection], T] | None = None

    def __get__(self, instance: object, owner: type | None = None) -> Callable[[HTTPConnection], T]:
        """Return the function, always the same one for one framework."""
        if "fastapi" not in sys.modules:
            return self._function
        if self._described is None:
            self._described = _described(self._function)
        return self._described


def _described(function: Callable[[HTTPConnection], T]) -> Callable[[HTTPConnection], T]:
    from fastapi import Header

    header: Any = Header(alias="Idempotency-Key", description=_DESCRIPTION)

    def of(request: HTTPConnection, idempotency_key: str = "") -> T:
        del idempotency_key  # the middleware has read it
        return function(request)

    # FastAPI sees a header without a default, which is required; an endpoint that calls the
    # function by itself gives none.
    signature = inspect.signature(of)
    request, key = signature.parameters.values()
    key = key.replace(default=key.empty, annotation=Annotated[str, header])
    of.__signature__ = signature.replace(parameters=[request, key])  # type: ignore[attr-defined]
    of.__doc__ = function.__doc__
    return of
