"""Upcasters: functions that make the stored JSON object of a former shape one of the next.

The upcasters of a class form a chain, from version 1 of its shape to the one that the class has
now. A message enters the chain at its version, which its metadata holds as ``schemaVersion``;
without one it has version 1. An upcaster with a predicate is applied if the predicate recognizes
the object, so that messages without versions can have had several shapes.

An object has the keys that are stored, in camelCase. Its numbers are `int` and `Decimal`, digit for
digit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from types import CodeType
from typing import Any

import msgspec

from reservation.errors import DeclarationError, DecodeError
from reservation.messages.message import StoredMessage, refuse_newer, stored_version
from reservation.messages.written import Written
from reservation.raised import describe
from reservation.serialization import codec
from reservation.serialization.json_limits import encoder

# Any: whatever a JSON object holds.
JsonObject = dict[str, Any]
Upcaster = Callable[[JsonObject], JsonObject]
Recognizer = Callable[[JsonObject], bool]

_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(float_hook=Decimal)


@dataclass(frozen=True, slots=True)
class Upcast:
    """An upcaster whose former shape is recognized by what the object holds, not by a version.

    ``account.message(Deposited, upcast=[Upcast(in_cents, when=lambda data: "dollars" in data)])``

    Attributes:
        function: takes the JSON object as a dictionary with the stored keys, whose numbers are
            `int` and `Decimal`, and returns the object of the next shape.
        when: takes the object, and returns whether it has the former shape.
    """

    function: Upcaster
    when: Recognizer


@dataclass(frozen=True, slots=True)
class UpcastStep:
    """One upcaster of a chain.

    Attributes:
        to: the version of the shape that it makes.
        upcast: the function.
        when: whether an object is of the former shape; None if its version says so.
    """

    to: int
    upcast: Upcaster
    when: Recognizer | None


class Chain:
    """The upcasters of one class.

    Attributes:
        class_: the class.
        steps: the upcasters, to version 2 and on, without gaps.
    """

    def __init__(self, class_: type, written: Written) -> None:
        self.class_ = class_
        self.steps: list[UpcastStep] = []
        self._version = written.version

    def add(self, upcast: Upcaster, when: Recognizer | None) -> None:
        """Add the next upcaster."""
        name, to = self.class_.__name__, len(self.steps) + 2
        if self._version is None and when is None:
            raise DeclarationError(
                f"{name}: the upcaster to {to} needs the version of a message, and messages of "
                f"{name} are written without one; declare it with version={to}, or recognize the "
                f"former shape with Upcast(function, when=…)"
            )
        if self._version is not None and self._version < to:
            raise DeclarationError(
                f"{name}: there is an upcaster to {to}, and the class has version "
                f"{self._version}; declare it with version={to}"
            )
        self.steps.append(UpcastStep(to, upcast, when))

    def check_complete(self) -> None:
        """Make sure that the chain leads to the version that the class has now."""
        reached = len(self.steps) + 1
        if self._version is not None and self._version != reached:
            name = self.class_.__name__
            raise DeclarationError(
                f"{name} has version {self._version}, and its upcasters lead to {reached}; give "
                f"the one to {reached + 1} with message({name}, upcast=[…])"
            )

    def decode(self, message: StoredMessage) -> object:
        """Return a message as an instance of the class, whichever of the shapes it has."""
        fields = self.upcast(message)
        if fields is None:
            return message.decode(self.class_)
        try:
            made: object = codec.decode(self.class_, encoder.encode(fields).decode())
        except Exception as error:  # a class may check itself as it likes
            refuse_newer(message, self.class_, self._known)
            raise DecodeError(
                f"Cannot decode {message}, after its upcasters: {codec.explain(error)}. Let them "
                f"make what {self.class_.__module__}.{self.class_.__qualname__} declares"
            ) from error
        return made

    def upcast(self, message: StoredMessage) -> JsonObject | None:
        """Return what the upcasters make of a message; None if it needs none, or is no object."""
        if message.data is None:
            raise DecodeError(f"Cannot decode {message}: it has no data")
        version = self._version_of(message)
        try:
            fields = _decoder.decode(message.data)
        except (msgspec.MsgspecError, RecursionError):
            return None
        if not isinstance(fields, dict):
            return None
        upcast = None
        for step in self.steps[version - 1 :]:
            try:
                changed = _apply(step, fields, message)
            except DecodeError:
                refuse_newer(message, self.class_, self._known)
                raise
            if changed is not None:
                fields = upcast = changed
        return upcast

    @property
    def _known(self) -> int:
        """The version that the class has, or that its upcasters lead to."""
        return self._version or len(self.steps) + 1

    def _version_of(self, message: StoredMessage) -> int:
        """Return the version of a message's shape."""
        if self._version is None:
            return 1
        stored = stored_version(message)
        if stored is None:
            return 1
        refuse_newer(message, self.class_, self._version)
        if not isinstance(stored, int | Decimal) or stored not in range(1, self._version + 1):
            raise DecodeError(
                f"Cannot decode {message}: its metadata has a schemaVersion that is none of 1 to "
                f"{self._version}, the versions of {self.class_.__module__}."
                f"{self.class_.__qualname__}; run the code that knows it, or correct its writer"
            )
        return int(stored)


def _apply(step: UpcastStep, fields: JsonObject, message: StoredMessage) -> JsonObject | None:
    """Return what an upcaster makes of an object; None if it does not recognize it."""
    function: Callable[..., Any] = step.when or step.upcast
    try:
        if step.when is not None and not step.when(fields):
            return None
        function = step.upcast
        # Any: an upcaster can return anything.
        made: Any = step.upcast(fields)
    except Exception as error:
        raise DecodeError(
            f"Cannot decode {message}: its upcaster to {step.to}, {name_of(function)}, raised "
            f"{describe(error)}"
        ) from error
    if not isinstance(made, dict):
        raise DecodeError(
            f"Cannot decode {message}: its upcaster to {step.to}, {name_of(function)}, returned a "
            f"{type(made).__name__}; let it return the object"
        )
    return made


def name_of(function: Callable[..., Any]) -> str:
    """Return how a function is named in errors."""
    return getattr(function, "__qualname__", type(function).__name__)


def code_of(function: object) -> list[Any]:
    """Return what a function consists of, as JSON: the same in every process.

    What it calls is not part of it, and neither are its name and the place where it is.
    """
    called: object = function
    # A method, a partial application, or an object that can be called.
    for name in ("__func__", "func", "__call__"):
        if not hasattr(called, "__code__"):
            called = getattr(called, name, called)
    code = getattr(called, "__code__", None)
    return [type(function).__qualname__] if code is None else _code(code)


def _code(code: CodeType) -> list[Any]:
    constants = [_constant(one) for one in code.co_consts]
    return [code.co_code.hex(), list(code.co_names), list(code.co_varnames), constants]


def _constant(value: object) -> Any:
    """Return a constant of a function; a set is sorted, because its order is no part of it."""
    if isinstance(value, CodeType):
        return _code(value)
    if isinstance(value, tuple):
        return [_constant(one) for one in value]
    if isinstance(value, frozenset):
        return sorted(map(repr, value))
    return repr(value)
