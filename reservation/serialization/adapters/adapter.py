"""What the codec asks of a kind of classes, and the errors that a class is the reason of."""

import datetime
import functools
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from typing import Any, Protocol
from uuid import UUID

import msgspec

# Any: classes, type hints and values of any component.

# Values of these types have no parts, and their exact type alone says that they fit.
PLAIN = frozenset(
    {str, int, float, bool, bytes, types.NoneType, Decimal, UUID}
    | {datetime.datetime, datetime.date, datetime.time, datetime.timedelta}
)


class UnfitClassError(TypeError):
    """A class cannot be stored; the text names it, or the field, and says what to do."""


def refusal(class_: type, error: UnfitClassError) -> str:
    """Return why a class cannot be a message; the text names the class."""
    name, text = class_.__name__, str(error)
    return text if text.startswith(name) else f"{name} cannot be a message: {text}"


class RefusedValuesError(ValueError):
    """A class refuses values of its fields.

    Attributes:
        problems: for each, the path in the JSON, such as ``.lines[...].amount``, and the reason,
            without the value.
    """

    def __init__(self, problems: Sequence[tuple[str, str]]) -> None:
        super().__init__(
            "; ".join(
                f"{reason} - at `${path}`" if path else reason for path, reason in problems[:MOST]
            )
        )
        self.problems = problems

    def within(self, path: str) -> "RefusedValuesError":
        """Return the error as one of a value that is a part of another."""
        return RefusedValuesError([(path + inner, reason) for inner, reason in self.problems])


# Of the fields that a class refuses at once, how many are shown.
MOST = 5


@dataclass(frozen=True, slots=True)
class FieldForm:
    """A field of a class, and its form in JSON.

    Attributes:
        name: its name in Python.
        key: its name in JSON.
        hint: its type.
        aliases: further names in JSON under which it is read.
        default: the value of a field that is missing; `msgspec.NODEFAULT` for none.
        factory: makes that value; `msgspec.NODEFAULT` for none.
        in_constructor: whether the constructor takes it.
    """

    name: str
    key: str
    hint: Any
    aliases: tuple[str, ...] = ()
    default: Any = field(default=msgspec.NODEFAULT)
    factory: Any = field(default=msgspec.NODEFAULT)
    in_constructor: bool = True

    @property
    def required(self) -> bool:
        """Whether data without it is refused."""
        return self.default is self.factory is msgspec.NODEFAULT

    @property
    def keys(self) -> tuple[str, ...]:
        """All names in JSON under which it is read."""
        return (self.key, *self.aliases)


class ClassAdapter(Protocol):
    """A kind of classes; each adapter derives from it, and has what is the same for most.

    Attributes:
        is_native: whether msgspec makes instances by itself, with all that the class does then.
    """

    is_native: bool

    def recognizes(self, class_: Any) -> bool:
        """Return whether a class is of the kind, without importing a library for that."""

    def forms(self, class_: Any) -> list[FieldForm]:
        """Return the fields that are stored; `UnfitClassError` if one has no form in JSON."""

    def options(self, class_: Any) -> dict[str, Any]:
        """Return what the class says of its JSON, as options of `msgspec.defstruct`."""
        del class_
        return {}

    def maker(self, class_: Any) -> Callable[[dict[str, Any]], Any]:
        """Return the function that makes an instance of decoded fields, by their names.

        It raises `RefusedValuesError` where the class refuses them.
        """

    def holds_plain_values(self, class_: Any) -> bool:
        """Return whether all that instances are is values of plain types in a dictionary.

        Then no code of the class runs when its fields are set, and nothing in a field has parts
        that would have to be made as well.
        """
        del class_
        return False

    def create(self, class_: Any, attributes: Mapping[str, Any]) -> Any:
        """Make an instance as a user of the class does, of attributes by the fields' names."""
        return class_(**attributes)

    def is_frozen(self, class_: Any) -> bool:
        """Return whether attributes of instances can never be set."""

    def runs_code(self, class_: Any) -> bool:
        """Return whether code of the class may check or change decoded values."""

    def sets_as_stored(self, class_: Any, names: Sequence[str]) -> bool:
        """Return whether the class is sure to leave decoded values of these fields as they are."""

    def code(self, class_: Any, code_of: Callable[[Any], list[Any]]) -> list[Any]:
        """Return what else the values of a decoded instance depend on, as JSON."""

    def state(self, instance: Any, names: Sequence[str]) -> dict[str, Any]:
        """Return all that is set on an instance, be it stored in a field of these names or not."""
        return getattr(instance, "__dict__", {}) | {name: getattr(instance, name) for name in names}


def camel_case(name: str) -> str:
    """Return a field's name as it stands in JSON: ``account_id`` is ``accountId``."""
    head, *tail = name.split("_")
    return head + "".join(map(str.capitalize, tail))


def attributes_only(class_: Any) -> bool:
    """Return whether instances are only attributes, which no code of the class sets later."""
    if hasattr(class_, "__deepcopy__"):
        return False
    # Of another one, it may be a list or a dict besides.
    return class_.__new__ is object.__new__ and not caches(class_)


def caches(class_: Any) -> bool:
    """Return whether a class has properties that set their value in the instance, when asked."""
    attributes = (attribute for base in class_.__mro__ for attribute in vars(base).values())
    return any(isinstance(one, cached_property) for one in attributes)


def with_classes(hint: Any, changed: Callable[[Any], Any]) -> Any:
    """Return a type hint with each class in it changed; the same one if none is."""
    if isinstance(hint, type) and not typing.get_args(hint):
        return changed(hint)
    arguments = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if not arguments or origin is typing.Literal:
        return hint
    made = tuple(with_classes(argument, changed) for argument in arguments)
    if all(one is argument for one, argument in zip(made, arguments, strict=True)):
        return hint
    if origin is types.UnionType or origin is typing.Union:
        return functools.reduce(lambda left, right: left | right, made)
    if origin is typing.Annotated:
        return typing.Annotated[(made[0], *hint.__metadata__)]
    return origin[made]


def factories(forms: Sequence[FieldForm]) -> Iterator[Any]:
    """Yield the functions that make the values of missing fields."""
    return (form.factory for form in forms if form.factory is not msgspec.NODEFAULT)
