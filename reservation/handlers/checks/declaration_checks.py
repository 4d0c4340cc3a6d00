"""Checks of a declaration when it is made, so that no fault waits for the first message.

Only what is certainly wrong is refused. An annotation that cannot be resolved yet, or leaves the
question open, is accepted.
"""

import inspect
import typing
from collections.abc import AsyncIterator, Awaitable, Collection, Iterator, Sequence
from collections.abc import Set as AnySet
from typing import Any, Literal

from reservation.context import Context
from reservation.errors import DeclarationError
from reservation.handlers.checks.annotations import accepts, annotations, leaves_of
from reservation.handlers.copying import copied
from reservation.handlers.execution import is_async
from reservation.handlers.failed_attempt import FailedAttempt
from reservation.messages.stream_name import check_category
from reservation.raised import describe
from reservation.serialization.struct_types import PLAIN, shown

# Whether a handler shares the transaction of its batch, or has one for its message.
Transaction = Literal["batch", "message"]

_NoneType = type(None)
_NEVER_EVENTS = (PLAIN | {dict, set, frozenset}) - {_NoneType}
_LAZY = (Iterator, AsyncIterator, Awaitable)


def check_class(component: str, decorator: str, class_: object, example: str) -> None:
    """Make sure that a decorator was given a class, and not the function below it.

    Args:
        component: the component's name.
        decorator: the decorator's name.
        class_: what it was given.
        example: the name of a class that it could have been given.

    Raises:
        DeclarationError: it was given something else.
    """
    if isinstance(class_, type):
        return
    name = getattr(class_, "__name__", type(class_).__name__)
    problem = "has no parentheses" if callable(class_) else "takes a class"
    raise DeclarationError(
        f"{component}: @{component}.{decorator} above {name} {problem}; write "
        f"@{component}.{decorator}({example})"
    )


def check_entity(component: str, entity: object) -> None:
    """Make sure that entities can be made, and copied for handlers.

    Args:
        component: the component's name.
        entity: the entity's class.

    Raises:
        DeclarationError: they cannot be made or copied.
    """
    if not isinstance(entity, type):
        raise DeclarationError(
            f"{component}: the entity is a class, not a {type(entity).__name__}; give entity= the "
            f"class itself"
        )
    try:
        made = entity()
    except Exception as error:
        raise DeclarationError(
            f"{component}: the entity {entity.__name__} cannot be made without arguments: "
            f"{describe(error)}; give each of its fields a default"
        ) from error
    try:
        copied(made)
    except Exception as error:
        raise DeclarationError(
            f"{component}: the entity {entity.__name__} cannot be copied for handlers: "
            f"{describe(error)}; let it hold only what copy.deepcopy can copy"
        ) from error


def check_transaction(component: str, command: type, transaction: object) -> bool:
    """Return whether a command has a transaction of its own.

    Args:
        component: the component's name.
        command: the command.
        transaction: "batch" or "message".

    Raises:
        DeclarationError: there is no such transaction.
    """
    if transaction not in typing.get_args(Transaction):
        raise DeclarationError(
            f"{component}: {command.__name__} cannot be handled in a transaction of its "
            f"{transaction!r}; write transaction='batch' or transaction='message'"
        )
    return transaction == "message"


def check_category_of_reservations(
    component: str, taken: Collection[str], into: str | None, entity: str | None
) -> None:
    """Make sure that commands can be reserved into a category, with the options given.

    Args:
        component: the component's name.
        taken: the categories of its commands, events, corrections and subscriptions.
        into: the reservation category; None for the command category.
        entity: the field whose value leads the id of the reservation streams; None for none.

    Raises:
        DeclarationError: the category is taken, or `entity` needs a reservation category.
        StreamNameError: the name cannot be that of a category.
    """
    if into is None and entity is not None:
        raise DeclarationError(
            f"{component}: entity={entity!r} leads the streams of a reservation category; name "
            f"that with into=, or leave both out and send commands to a stream for each entity"
        )
    if into in taken:
        raise DeclarationError(
            f"{component}: the reservation category {into!r} is in use for the component's "
            f"commands, events, corrections or subscriptions; name another, or leave it out"
        )
    if into is not None:
        check_category(into)


def check_handler(
    component: str,
    command: type,
    handler: Any,
    entity: type | None,
    commands: Collection[type],
    role: Literal["command", "message"] = "command",
) -> None:
    """Make sure that a function can be the handler of a command, or of a message of others.

    Args:
        component: the component's name.
        command: the command, or the message.
        handler: the function.
        entity: the class of the component's entity; None if it has none.
        commands: the component's commands, which a handler must not return.
        role: "message" for one of a subscribed category.

    Raises:
        DeclarationError: the function cannot be called so, or is annotated for something else.
    """
    what = f"handler of {command.__name__}"
    arguments = [(role, command), ("entity", entity), ("context", Context)]
    _check_function(component, what, handler, arguments, may_be_async=True)
    refused = {*commands, command} if role == "command" else commands
    _check_returned(component, what, handler, refused, starts=False)


def check_initiator(
    component: str, command: type, handler: Any, commands: Collection[type]
) -> None:
    """Make sure that a function can be the handler of a command that starts a stream.

    Args:
        component: the component's name.
        command: the command.
        handler: the function.
        commands: the component's commands, which a handler must not return.

    Raises:
        DeclarationError: as for `check_handler`.
    """
    what = f"handler of {command.__name__}"
    arguments = [("command", command), ("context", Context)]
    _check_function(component, what, handler, arguments, may_be_async=True)
    _check_returned(component, what, handler, {*commands, command}, starts=True)


def check_upcaster(component: str, message: type, upcaster: Any, when: Any) -> None:
    """Make sure that a function can be an upcaster of a message, and another its predicate.

    Args:
        component: the component's name.
        message: the message.
        upcaster: the function.
        when: the predicate; None for none.

    Raises:
        DeclarationError: one of them cannot be called so, or is annotated for something else.
    """
    data: list[tuple[str, type | None]] = [("data", dict)]
    what = f"upcaster of {message.__name__}"
    _check_function(component, what, upcaster, data)
    for leaf in leaves_of(annotations(upcaster).get("return", Any)):
        if leaf is _NoneType:
            raise DeclarationError(
                f"{_where(component, what, upcaster)} is annotated to return None; return the "
                f"object of the next shape"
            )
    if when is not None:
        _check_function(component, f"predicate of {message.__name__}", when, data)


def check_error_hook(component: str, hook: Any) -> None:
    """Make sure that a function can be called with the exception of a failed attempt.

    Args:
        component: the component's name.
        hook: the function.

    Raises:
        DeclarationError: the function cannot be called so, or is annotated for something else.
    """
    arguments: list[tuple[str, type | None]] = [("error", Exception), ("attempt", FailedAttempt)]
    _check_function(component, "function for errors", hook, arguments)


def check_single(
    component: str, method: str, classes: Sequence[type], was: object, stored_as: object
) -> None:
    """Make sure that former names are those of one class.

    Args:
        component: the component's name.
        method: the method of the component.
        classes: the classes that it was called with.
        was: the former names.
        stored_as: the name to write.

    Raises:
        DeclarationError: there are several classes, and names.
    """
    if len(classes) != 1 and (was or stored_as is not None):
        raise DeclarationError(
            f"{component}: was= and stored_as= name one class; call {component}.{method} for each "
            f"class that has former names"
        )


def check_projected(component: str, event: type, entity: type | None) -> None:
    """Make sure that there is an entity to apply an event to.

    Args:
        component: the component's name.
        event: the event.
        entity: the class of the component's entity; None if it has none.

    Raises:
        DeclarationError: the component has no entity, or the event is not a class.
    """
    check_class(component, "project", event, "Withdrawn")
    if entity is None:
        raise DeclarationError(
            f"{component}: there is no entity for the projector of {event.__name__} to change; "
            f"declare it with Component({component!r}, entity=...)"
        )


def check_projector(
    component: str, event: type, entity: type | None, projector: Any, known: Collection[str]
) -> None:
    """Make sure that a function can be the projector of an event.

    Args:
        component: the component's name.
        event: the event.
        entity: the class of the component's entity.
        projector: the function.
        known: the types of the events that have a projector.

    Raises:
        DeclarationError: the function cannot be called so, or the event has a projector already.
    """
    arguments = [("entity", entity), ("event", event)]
    _check_function(component, f"projector of {event.__name__}", projector, arguments)
    if event.__name__ in known:
        raise DeclarationError(f"{component}: {event.__name__} has two projectors; keep one")


def _check_function(
    component: str,
    what: str,
    function: Any,
    parameters: Sequence[tuple[str, type | None]],
    *,
    may_be_async: bool = False,
) -> None:
    """Make sure that a function can be called as it will be, with arguments of these classes.

    Each argument has a name and a class, None for an argument that is None.
    """
    where = _where(component, what, function)
    call = function if inspect.isroutine(function) else getattr(function, "__call__", None)  # noqa: B004  its own is wanted
    if not may_be_async and is_async(function):
        raise DeclarationError(f"{where} is async; declare it with def: it is called without await")
    for each in (function, call):
        if inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each):
            raise DeclarationError(f"{where} is a generator; return a list instead of using yield")
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # it is not written in Python, or not callable
        if callable(function):
            return
        raise DeclarationError(f"{where} is not a function") from None
    names = ", ".join(name for name, _ in parameters)
    try:
        bound = signature.bind(*[None] * len(parameters))
    except TypeError as error:
        raise DeclarationError(
            f"{where} cannot be called with {names}: {error}; let it take these "
            f"{len(parameters)} arguments"
        ) from None
    known = annotations(function)
    for parameter, (name, class_) in zip(bound.arguments, parameters, strict=False):
        hint = known.get(parameter, Any)
        if not accepts(hint, class_):
            given = (
                "None, because the component has no entity" if class_ is None else class_.__name__
            )
            raise DeclarationError(
                f"{where} is annotated to take {parameter}: {shown(hint)}, and the {name} is "
                f"{given}; correct the annotation or the declaration"
            )


def _check_returned(
    component: str, what: str, function: Any, commands: Collection[type], *, starts: bool
) -> None:
    """Make sure that a handler is not annotated to return anything but events."""
    where = _where(component, what, function)
    hint = annotations(function).get("return", Any)
    leaves = list(leaves_of(hint))
    for leaf in leaves:
        origin = typing.get_origin(leaf) or leaf
        if isinstance(leaf, type) and leaf in commands:
            raise DeclarationError(
                f"{where} is annotated to return the command {leaf.__name__}; return an event, "
                f"and write commands with context.write"
            )
        if isinstance(origin, type) and (origin in _NEVER_EVENTS or issubclass(origin, AnySet)):
            raise DeclarationError(
                f"{where} is annotated to return {shown(hint)}; a handler returns an event, "
                f"a list of events or None"
            )
        if isinstance(origin, type) and issubclass(origin, _LAZY):
            raise DeclarationError(
                f"{where} is annotated to return {shown(hint)}; return a list of events"
            )
    if starts and leaves and all(leaf is _NoneType for leaf in leaves):
        raise DeclarationError(
            f"{where} is annotated to return None; a command that initiates must return the event "
            f"that starts the stream"
        )


def _where(component: str, what: str, function: Any) -> str:
    name = getattr(function, "__qualname__", type(function).__name__)
    return f"{component}: the {what}, {name},"


def check_once(component: str, command: type, once: Any) -> None:
    """Make sure that `once` is a strategy.

    Args:
        component: the component's name.
        command: the command that it is declared for.
        once: what was given as the strategy.

    Raises:
        DeclarationError: it is none.
    """
    if once is None:
        return
    if isinstance(once, type):
        raise DeclarationError(
            f"{component}: once={once.__name__} of {command.__name__} is a class; write "
            f"once={once.__name__}()"
        )
    methods = ("declare", "begin", "categories")
    if not (all(callable(getattr(once, m, None)) for m in methods) and hasattr(once, "two_phase")):
        raise DeclarationError(
            f"{component}: once= of {command.__name__} is a {type(once).__name__}; give it a "
            f"strategy, such as Processed()"
        )
