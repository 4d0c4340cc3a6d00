"""What a process that runs a component can read, what it writes, and how it makes keys.

Each member of a group stores it, so that a process with another declaration can see whether both
may run at once. Types stand under the names that they have in the store, and keys are described by
the names of their fields in JSON, so that a renamed class is no change.
"""

import ast
import contextlib
import dataclasses
import hashlib
import inspect
import json
import linecache
import textwrap
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from types import CodeType, NoneType
from typing import Any

import msgspec

import reservation
from reservation.component import Component
from reservation.declaration.subscribed_category import SubscribedCategory
from reservation.handlers.checks.returned_checks import returned_classes
from reservation.idempotence.key import KeyFunction
from reservation.idempotence.strategy import Strategy
from reservation.messages.pseudo_event import PSEUDO_EVENT
from reservation.messages.upcasting import code_of
from reservation.serialization.codec import camel_case
from reservation.serialization.struct_types import names_of

# The form of the stored object. One of another form is not read.
FORM = 1

# The parts of a key: names of fields in JSON, or what tells a function from others.
KeyForm = tuple[str, ...]


class DeclaredCommand(msgspec.Struct, frozen=True, omit_defaults=True):
    """How commands of one type are kept from taking effect twice.

    Attributes:
        role: ``reserved``, ``initiates`` or ``handled``.
        into: the category of its reservations; None for the command category, or where there are
            none.
        key: what the id of its reservation streams is made of, the entity's field first.
        formerly: what it was made of before, under which a reservation is found too.
        once: the strategy of its handler, with its key.
        names: the types under which such commands are read.
        written: the one of them under which they are sent today.
    """

    role: str
    into: str | None = None
    key: KeyForm = ()
    formerly: KeyForm | None = None
    once: tuple[str, ...] | None = None
    names: tuple[str, ...] = ()
    written: str = ""


class DeclaredSubscription(msgspec.Struct, frozen=True, omit_defaults=True):
    """How messages of one type of a subscribed category are handled.

    Attributes:
        id: what the id of the entity is made of.
        from_position: the global position from which on they are handled.
        correlated: whether only those are handled whose correlation leads back.
        once: the strategy of the handler, with its key; None for the default.
        names: the types under which such messages are read.
    """

    id: KeyForm
    from_position: int = 0
    correlated: bool = False
    once: tuple[str, ...] | None = None
    names: tuple[str, ...] = ()


class Shape(msgspec.Struct, frozen=True, omit_defaults=True):
    """The shape in which events of one type are read or written.

    Attributes:
        version: the one that is written, or the highest that is read; None if none is, or if that
            does not matter.
        fields: the fields that are written, or that an event must have to be read; in JSON.
    """

    version: int | None = None
    fields: tuple[str, ...] = ()


class ProcessDeclaration(msgspec.Struct, frozen=True, rename="camel"):
    """What one process declares.

    Attributes:
        form: that of this object.
        release: the version of this package.
        commands: the commands that it reads, by type.
        ignored: the types that it skips.
        events: the events that it reads in its entity's stream, by type; None without an entity.
        writes: the events that its handlers may write, by type.
        subscriptions: of each category that it subscribes to, the messages that it handles, by
            type.
    """

    form: int
    release: str
    commands: dict[str, DeclaredCommand]
    ignored: tuple[str, ...]
    events: dict[str, Shape] | None
    writes: dict[str, Shape]
    subscriptions: dict[str, dict[str, DeclaredSubscription]] = {}

    def to_json(self) -> str:
        """Return it as JSON text."""
        return msgspec.json.encode(self, order="sorted").decode()

    @classmethod
    def from_json(cls, text: str | None) -> "ProcessDeclaration | None":
        """Return what was stored; None if nothing was, or in a form of another version."""
        try:
            found = None if text is None else msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError:
            return None
        return found if found is not None and found.form == FORM else None

    @classmethod
    def of(cls, component: Component[Any]) -> "ProcessDeclaration":
        """Return what a process declares that runs a component."""
        return cls(
            form=FORM,
            release=reservation.__version__,
            commands=_commands(component),
            ignored=tuple(sorted(component.ignored)),
            events=_read(component) if component.projection.is_used else None,
            writes=_written(component) if component.projection.is_used else {},
            subscriptions={name: _subscribed(one) for name, one in component.subscribed.items()},
        )


def _commands(component: Component[Any]) -> dict[str, DeclaredCommand]:
    types = component.types
    commands = {}
    for name in {*component.handlers, *component.initiations, *component.reservations}:
        role, into = "handled", None
        key: KeyForm = ()
        formerly: KeyForm | None = None
        if name in component.initiations:
            role, key = "initiates", (camel_case(component.id),)
        elif name in component.reservations:
            declared = component.reservations[name]
            leading = () if declared.entity is None else (camel_case(declared.entity),)
            role, key, into = "reserved", (*leading, *_key(declared.key)), declared.into
            formerly = None if declared.formerly is None else _key(declared.formerly)
        commands[name] = DeclaredCommand(
            role,
            into,
            key,
            formerly,
            once=_strategy(component.strategies.get(name)),
            names=types.names(types[name].__name__),
            written=types.written(types[name]).name,
        )
    return commands


def _subscribed(declared: SubscribedCategory) -> dict[str, DeclaredSubscription]:
    return {
        name: DeclaredSubscription(
            _key(one.id if callable(one.id) else (one.id,)),
            one.from_position,
            one.correlated,
            _strategy(one.once),
            declared.types.names_of(one.message),
        )
        for name, one in declared.subscriptions.items()
    }


def _strategy(strategy: Strategy | None) -> tuple[str, ...] | None:
    if strategy is None:
        return None
    key = getattr(strategy, "key", None)
    return (type(strategy).__name__, *(() if key is None else _key(key)))


def _key(key: tuple[str, ...] | KeyFunction) -> KeyForm:
    return (_function(key),) if callable(key) else tuple(map(camel_case, key))


# Held while a syntax tree is made.
_parsing = threading.Lock()
_MOST_ATTEMPTS = 10

# What has the same text in every process.
_PLAIN = (str, bytes, bool, int, float, Decimal, NoneType)


def _function(function: Callable[..., Any]) -> str:
    """Return what tells a key function from another: a digest of its code and what is bound to it.

    Where its source is known that is its syntax tree, so its name, its layout and what is said
    about it do not count, and neither does the version of Python. What it calls is not part of it.
    """
    code = _source(function) or json.dumps(code_of(function))
    bound = _bound(function)
    text = "\n".join([code, *bound])
    return f"function {hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _source(function: Callable[..., Any]) -> str | None:
    """Return the source of a function without its name and its description; None if unknown."""
    if getattr(function, "__name__", None) == "<lambda>":
        return _source_of_lambda(function.__code__)
    try:
        tree = _parsed(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    match [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
        case [ast.FunctionDef(args=arguments, body=body), *_]:
            if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
                body = body[1:]
            return "\n".join(map(ast.unparse, [arguments, *body]))
    return None


def _source_of_lambda(code: CodeType) -> str | None:
    """Return the source of a lambda; None if its line has several, or is unknown."""
    try:
        tree = _parsed("".join(linecache.getlines(code.co_filename)))
    except (SyntaxError, ValueError):
        return None
    match [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno
    ]:
        case [node]:
            return ast.unparse(node)
    return None


def _parsed(source: str) -> ast.Module:
    """Return the syntax tree of a source.

    CPython counts how deep it is in a tree for all threads together. Where others make trees at the
    same time it may raise `SystemError`, for no fault of the source (python/cpython#106905).
    """
    with _parsing:
        for _ in range(_MOST_ATTEMPTS - 1):
            with contextlib.suppress(SystemError):
                return ast.parse(source)
        return ast.parse(source)


def _bound(function: Callable[..., Any]) -> Iterator[str]:
    """Give the values that a function takes from where it was made, and its defaults."""
    values: list[object] = [*(getattr(function, "__defaults__", None) or ())]
    values += (getattr(function, "__kwdefaults__", None) or {}).values()
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # nothing is in it yet
            values.append(cell.cell_contents)
    for value in values:
        if isinstance(value, _PLAIN):
            yield repr(value)
        elif inspect.isfunction(value):
            yield _function(value)
        else:
            yield type(value).__qualname__


def _read(component: Component[Any]) -> dict[str, Shape]:
    known, types = component.projection, component.types
    read = dict.fromkeys((PSEUDO_EVENT, *known.passed, *known.ignored), Shape())
    for name in known.types:
        if types.is_upcast(name):  # what its upcasters make of a former shape is not known
            read[name] = Shape(types.written(types[name]).version)
        else:
            read[name] = Shape(fields=tuple(_required(types[name])))
    return read


def _required(class_: Any) -> Iterator[str]:
    for field in dataclasses.fields(class_):
        if field.default is field.default_factory is dataclasses.MISSING:
            yield camel_case(field.name)


def _written(component: Component[Any]) -> dict[str, Shape]:
    """Return the events that handlers may write.

    They are those that the handlers are annotated to return. A handler without such an annotation
    may write every event that is declared.
    """
    handlers: list[Any] = [
        *component.handlers.values(),
        *(initiation.handler for initiation in component.initiations.values()),
        *(h for subscribed in component.subscribed.values() for h in subscribed.handlers.values()),
    ]
    declared = {*component.projection.types, *component.projection.passed}
    written: set[type] = set()
    for handler in handlers:
        classes = returned_classes(handler)
        written.update((component.types[n] for n in declared) if classes is None else classes)
    shapes = {}
    for class_ in written:
        name, version = component.types.written(class_)
        shapes[name] = Shape(version, tuple(map(camel_case, names_of(class_))))
    return shapes
