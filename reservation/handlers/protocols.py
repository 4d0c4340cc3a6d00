"""The types of handlers and projectors, by which mypy and pyright check a declaration.

A decorator returns the function as it is, typed as it was declared. So a function that handles
several commands is declared by calls, ``account.handle(Deposit)(change)``, and not by decorators
above each other. What a running program accepts is decided by `declaration_checks`.
"""

import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, overload

from reservation.context import Context
from reservation.messages.message_instance import MessageInstance

if sys.version_info >= (3, 13):
    from typing import TypeVar
else:
    from typing_extensions import TypeVar


FirstEvents = MessageInstance | Sequence[MessageInstance | None]
Events = FirstEvents | None

# Any: an annotation such as `component: Component` leaves the entity open.
Entity = TypeVar("Entity", default=Any)
Command = TypeVar("Command", bound=MessageInstance)
Event = TypeVar("Event", bound=MessageInstance)
# What a handler's call gives: what it returns or, with `async def`, what is awaited for that.
Returned = TypeVar("Returned", bound=Events | Coroutine[Any, Any, Events])
FirstReturned = TypeVar("FirstReturned", bound=FirstEvents | Coroutine[Any, Any, FirstEvents])


class HandlerDecorator(Protocol[Command, Entity]):
    """Declares a function that takes a command, its entity and the `Context`.

    It returns an event, several as a sequence, or None. With ``async def`` it is awaited.
    """

    def __call__(
        self, handler: Callable[[Command, Entity, Context], Returned], /
    ) -> Callable[[Command, Entity, Context], Returned]:
        """Declare the function as the handler of the command, and return it."""
        ...


class InitiatorDecorator(Protocol[Command]):
    """Declares a function that takes a command that starts a stream, and the `Context`.

    It returns the first event of the stream, or several as a sequence. With ``async def`` it is
    awaited.
    """

    def __call__(
        self, handler: Callable[[Command, Context], FirstReturned], /
    ) -> Callable[[Command, Context], FirstReturned]:
        """Declare the function as the handler of the command, and return it."""
        ...


class ProjectorDecorator(Protocol[Event, Entity]):
    """Declares a function that takes the entity and an event.

    It changes the entity and returns None, or returns the new one.
    """

    @overload
    def __call__(
        self, projector: Callable[[Entity, Event], None], /
    ) -> Callable[[Entity, Event], None]: ...
    @overload
    def __call__(
        self, projector: Callable[[Entity, Event], Entity], /
    ) -> Callable[[Entity, Event], Entity]: ...
    def __call__(self, projector: Callable[[Entity, Event], Any], /) -> Any:
        """Declare the function as the projector of the event, and return it."""
        ...
