"""What a process that runs a component can read, what it writes, and how it makes keys.

Each member of a group stores it, so that a process with another declaration can see whether both
may run at once. Types stand under the names that they have in the store, and keys are described by
the names of their fields in JSON, so that a renamed class is no change.
"""

import ast
import hashlib
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import msgspec

import reservation
from reservation.component import Component
from reservation.handlers.declaration_checks import returned_classes
from reservation.idempotence.key import KeyFunction
from reservation.messages.pseudo_event import PSEUDO_EVENT
from reservation.serialization.codec import camel_case

# The form of the stored object. One of another form is not read.
FORM = 1

# A part of a key: the name of a field in JSON, or what tells a function from others.
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
    """

    role: str
    into: str | None = None
    key: KeyForm = ()
    formerly: KeyForm | None = None
    once: tuple[str, ...] | None = None


class ProcessDeclaration(msgspec.Struct, frozen=True, rename="camel"):
    """What one process declares.

    Attributes:
        form: that of this object.
        release: the version of this package.
        commands: the commands that it reads, by type.
        ignored: the types that it skips.
        events: the types of events that it reads in its entity's stream; None without an entity.
        writes: the types of events that its handlers may write.
    """

    form: int
    release: str
    commands: dict[str, DeclaredCommand]
    ignored: tuple[str, ...]
    events: tuple[str, ...] | None
    writes: tuple[str, ...]

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
        events = None
        if component.entity is not None:
            events = tuple(sorted({*component.projection.types, *component.ignored, PSEUDO_EVENT}))
        return cls(
            form=FORM,
            release=reservation.__version__,
            commands=_commands(component),
            ignored=tuple(sorted(component.ignored)),
            events=events,
            writes=() if events is None else tuple(sorted(_written(component))),
        )


def _commands(component: Component[Any]) -> dict[str, DeclaredCommand]:
    commands = {}
    for name, handler in component.handlers.items():
        del handler
        commands[name] = DeclaredCommand("handled", once=_strategy(component, name))
    for name in component.initiations:
        commands[name] = DeclaredCommand("initiates", key=(camel_case(component.id),))
    for name, declared in component.reservations.items():
        leading = () if declared.entity is None else (camel_case(declared.entity),)
        commands[name] = DeclaredCommand(
            "reserved",
            into=declared.into,
            key=(*leading, *_key(declared.key)),
            formerly=None if declared.formerly is None else _key(declared.formerly),
            once=_strategy(component, name),
        )
    return commands


def _strategy(component: Component[Any], command: str) -> tuple[str, ...] | None:
    strategy = component.strategies.get(command)
    if strategy is None:
        return None
    key = getattr(strategy, "key", None)
    return (type(strategy).__name__, *(() if key is None else _key(key)))


def _key(key: tuple[str, ...] | KeyFunction) -> KeyForm:
    return (_function(key),) if callable(key) else tuple(map(camel_case, key))


def _function(function: Callable[..., Any]) -> str:
    """Return what tells a key function from another: its name, and a digest of its code.

    The digest is of the code's syntax tree, so comments and layout do not change it.
    """
    name = getattr(function, "__qualname__", type(function).__name__)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return f"{name}()"
    digest = hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:12]
    return f"{name}() {digest}"


def _written(component: Component[Any]) -> set[str]:
    """Return the types of events that handlers may write.

    They are those that the handlers are annotated to return. A handler without such an annotation
    may write every event that has a projector.
    """
    handlers: list[Any] = [
        *component.handlers.values(),
        *(initiation.handler for initiation in component.initiations.values()),
    ]
    written: set[str] = set()
    for handler in handlers:
        classes = returned_classes(handler)
        if classes is None:
            return set(component.projection.types)
        written.update(class_.__name__ for class_ in classes)
    return written
