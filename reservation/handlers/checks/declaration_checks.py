"""Checks of a declaration when it is made, so that no fault waits for the first message.

Only what is certainly wrong is refused. An annotation that cannot be resolved yet, or leaves the
question open, is accepted.
"""

import inspect
import typing
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from collections.abc import Set as AnySet
from typing import Any, Literal

from reservation.context import Context
from reservation.errors import DeclarationError
from reservation.handlers.checks.annotations import accepts, annotations, leaves_of
from reservation.handlers.copying import copied
from reservation.handlers.execution import is_async
from reservation.handlers.failed_attempt import FailedAttempt
from reservation.messages.stream_name import check_category
from reservation.messages.upcasting import Recognizer, Upcast, Upcaster
from reservation.raised import describe
from reservation.recurring.series import Tick
from reservation.serialization.adapters.adapter import PLAIN
from reservation.serialization.immutability import never_changes
from reservation.serialization.struct_types import shown

_NoneType = type(None)
_NEVER_EVENTS = (PLAIN | {dict, set, frozenset}) - {_NoneType}
_LAZY = (Iterator, AsyncIterator, Awaitable)


def check_class(component: str, decorator: str, class_: object, example: str) -> None:
    """Make sure that a decorator was given a class, and not the function below it."""
    if isinstance(class_, type):
        return
    name = getattr(class_, "__name__", type(class_).__name__)
    problem = "has no parentheses" if callable(class_) else "takes a class"
    raise DeclarationError(
        f"{component}: @{component}.{decorator} above {name} {problem}; write "
        f"@{component}.{decorator}({example})"
    )


def check_messages(component: str, messages: Sequence[object]) -> None:
    """Make sure that ``message`` was given classes, one beside the other."""
    for one in messages:
        if not isinstance(one, type):
            raise DeclarationError(
                f"{component}: message takes classes, not a {type(one).__name__}; write "
                f"{component}.message(Withdrawn)"
            )


def check_ignored(component: str, types: Sequence[object]) -> None:
    """Make sure that types to ignore are named as they are stored."""
    for one in types:
        if not isinstance(one, str) or not one:
            shown = f"the class {one.__name__}" if isinstance(one, type) else repr(one)
            name = one.__name__ if isinstance(one, type) else "Renamed"
            raise DeclarationError(
                f"{component}: ignore takes the names of types as strings, not {shown}; write "
                f"{component}.ignore({name!r})"
            )


def check_replies_to(component: str, categories: str | Iterable[str]) -> frozenset[str]:
    """Return the categories that a component may reply to, once they are such."""
    names = [categories] if isinstance(categories, str) else list(categories)
    for name in names:
        if check_category(name).partition(":")[0] == component:
            raise DeclarationError(
                f"{component}: replies cannot go to {name}, which is the component's own category; "
                f"give replies_to= categories that only senders read, such as client"
            )
    return frozenset(names)


def check_entity(component: str, entity: object) -> None:
    """Make sure that entities can be made, and copied for handlers."""
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


def check_handler(
    component: str,
    command: type,
    handler: Any,
    entity: type | None,
    commands: Collection[type],
    role: Literal["command", "message"] = "command",
) -> None:
    """Make sure that a function can be the handler of a command, or of a message of others."""
    what = f"handler of {command.__name__}"
    arguments = [(role, command), ("entity", entity), ("context", Context)]
    check_function(component, what, handler, arguments, may_be_async=True)
    refused = {*commands, command} if role == "command" else commands
    _check_returned(component, what, handler, refused, starts=False)


def check_initiator(
    component: str, command: type, handler: Any, commands: Collection[type]
) -> None:
    """Make sure that a function can be the handler of a command that starts a stream."""
    what = f"handler of {command.__name__}"
    arguments = [("command", command), ("context", Context)]
    check_function(component, what, handler, arguments, may_be_async=True)
    _check_returned(component, what, handler, {*commands, command}, starts=True)


def upcasters_of(
    component: str, message: type, given: Any
) -> list[tuple[Upcaster, Recognizer | None]]:
    """Return the upcasters of a message, each with its predicate, once all can be called."""
    is_one = callable(given) or isinstance(given, Upcast)
    steps = [given] if is_one or not isinstance(given, Iterable) else list(given)
    made: list[tuple[Upcaster, Recognizer | None]] = [
        (one.function, one.when) if isinstance(one, Upcast) else (one, None) for one in steps
    ]
    for function, when in made:
        check_upcaster(component, message, function, when)
    return made


def check_taken(component: str, option: str, message: type, function: Any) -> None:
    """Make sure that a function can be called with a message, to take a key or an id from it."""
    what = f"function of {option} of {message.__name__}"
    check_function(component, what, function, [("message", message)])


def check_upcaster(component: str, message: type, upcaster: Any, when: Any) -> None:
    """Make sure that a function can be an upcaster of a message, and another its predicate."""
    data: list[tuple[str, type | None]] = [("data", dict)]
    what = f"upcaster of {message.__name__}"
    check_function(component, what, upcaster, data)
    for leaf in leaves_of(annotations(upcaster).get("return", Any)):
        if leaf is _NoneType:
            raise DeclarationError(
                f"{named(component, what, upcaster)} is annotated to return None; return the "
                f"object of the next shape"
            )
    if when is not None:
        check_function(component, f"predicate of {message.__name__}", when, data)


def check_error_hook(component: str, hook: Any) -> None:
    """Make sure that a function can be called with the exception of a failed attempt."""
    arguments: list[tuple[str, type | None]] = [("error", Exception), ("attempt", FailedAttempt)]
    check_function(component, "function for errors", hook, arguments)


def check_tick_function(component: str, series: str, function: Any) -> None:
    """Make sure that a function can be called with a tick of a series."""
    what = f"function of the series {series!r}"
    check_function(component, what, function, [("tick", Tick)])


def check_single(component: str, classes: Sequence[type], options: Mapping[str, Any]) -> None:
    """Make sure that options are those of one class, and that there is a class."""
    if not classes:
        raise DeclarationError(
            f"{component}: message names no class; write {component}.message(Withdrawn)"
        )
    given = [f"{name}=" for name, value in options.items() if value is not None and value != ()]
    if len(classes) > 1 and given:
        raise DeclarationError(
            f"{component}: {' and '.join(given)} of message is for one class; call "
            f"{component}.message for each class that has options"
        )


def check_projected(component: str, event: type, entity: type | None) -> None:
    """Make sure that there is an entity to apply an event to."""
    check_class(component, "project", event, "Withdrawn")
    if entity is None:
        raise DeclarationError(
            f"{component}: there is no entity for the projector of {event.__name__} to change; "
            f"declare it with Component({component!r}, entity=...)"
        )


def check_projector(component: str, event: type, entity: type | None, projector: Any) -> None:
    """Make sure that a function can be the projector of an event."""
    arguments = [("entity", entity), ("event", event)]
    what = f"projector of {event.__name__}"
    check_function(component, what, projector, arguments)
    if entity is not None:
        _check_new_entity(named(component, what, projector), projector, entity)


def _check_new_entity(where: str, projector: Any, entity: type) -> None:
    """Make sure that a projector is annotated to return the entity, or None if it changes it."""
    hint = annotations(projector).get("return", Any)
    if hint is _NoneType or hint is None:
        if never_changes(entity):
            raise DeclarationError(
                f"{where} is annotated to return None, and a {entity.__name__} cannot be changed; "
                f"let it return the new {entity.__name__}"
            )
    elif not (
        accepts(hint, entity)
        or accepts(hint, None)
        or (isinstance(hint, type) and issubclass(hint, entity))
    ):
        raise DeclarationError(
            f"{where} is annotated to return {shown(hint)}; let it return the {entity.__name__}, "
            f"or None if it changes the one that it takes"
        )


def check_function(
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
    where = named(component, what, function)
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
            f"{where} cannot be called with {names}: {error}; let it take "
            + (f"these {len(parameters)} arguments" if len(parameters) > 1 else "one argument")
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
    where = named(component, what, function)
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


def named(component: str, what: str, function: Any) -> str:
    """Return what begins an error about a declared function."""
    name = getattr(function, "__qualname__", type(function).__name__)
    return f"{component}: the {what}, {name},"


def check_once(component: str, command: type, once: Any) -> None:
    """Make sure that `once` is a strategy."""
    if once is None:
        return
    if isinstance(once, type):
        raise DeclarationError(
            f"{component}: once={once.__name__} of {command.__name__} is a class; write "
            f"once={once.__name__}()"
        )
    methods = ("declare", "look", "categories")
    if not (
        all(callable(getattr(once, m, None)) for m in methods) and hasattr(once, "keeps_state")
    ):
        raise DeclarationError(
            f"{component}: once= of {command.__name__} is a {type(once).__name__}; give it a "
            f"strategy, such as Processed()"
        )
