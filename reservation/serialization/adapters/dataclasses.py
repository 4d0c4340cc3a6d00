"""Dataclasses of the standard library."""

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from reservation.serialization.adapters.adapter import (
    PLAIN,
    ClassAdapter,
    FieldForm,
    UnfitClassError,
    attributes_only,
    camel_case,
    factories,
)

# Any: classes and values of any component.


class DataclassAdapter(ClassAdapter):
    """The adapter of dataclasses."""

    is_native = True

    def recognizes(self, class_: Any) -> bool:
        return dataclasses.is_dataclass(class_)

    def forms(self, class_: Any) -> list[FieldForm]:
        if hasattr(class_, "__pydantic_validator__"):
            raise UnfitClassError(
                f"{class_.__name__} is a dataclass of Pydantic; derive it from "
                f"pydantic.BaseModel, or decorate it with dataclasses.dataclass"
            )
        hints = typing.get_type_hints(class_, include_extras=True)
        return [
            FieldForm(
                field.name,
                camel_case(field.name),
                hints[field.name],
                default=_or_none(field.default),
                factory=_or_none(field.default_factory),
                in_constructor=field.init,
            )
            for field in dataclasses.fields(class_)
        ]

    def options(self, class_: Any) -> dict[str, Any]:
        return {"omit_defaults": getattr(class_, "__omit_defaults__", False)}

    def maker(self, class_: Any) -> Callable[[dict[str, Any]], Any]:
        """Return what sets the fields as msgspec does: without code of the class."""
        new, set_ = object.__new__, object.__setattr__
        then = getattr(class_, "__post_init__", None)

        def make(values: dict[str, Any]) -> Any:
            made = new(class_)
            for name, value in values.items():
                set_(made, name, value)
            if then is not None:
                then(made)
            return made

        return make

    def holds_plain_values(self, class_: Any) -> bool:
        if not class_.__dictoffset__ or inspect.isabstract(class_):
            return False
        forms = self.forms(class_)
        # A field for the constructor alone, or of the class, is no field of the instances.
        if hasattr(class_, "__post_init__") or len(class_.__dataclass_fields__) > len(forms):
            return False
        attributes = [inspect.getattr_static(class_, form.name, None) for form in forms]
        are_plain = all(_is_plain_hint(form.hint) for form in forms)
        return are_plain and not any(map(inspect.isdatadescriptor, attributes))

    def is_frozen(self, class_: Any) -> bool:
        parameters = vars(class_).get("__dataclass_params__")
        return parameters is not None and parameters.frozen and attributes_only(class_)

    def runs_code(self, class_: Any) -> bool:
        return hasattr(class_, "__post_init__")

    def sets_as_stored(self, class_: Any, names: Sequence[str]) -> bool:
        del names
        return not self.runs_code(class_)

    def code(self, class_: Any, code_of: Callable[[Any], list[Any]]) -> list[Any]:
        made = [code_of(factory) for factory in factories(self.forms(class_))]
        return [made, code_of(vars(class_).get("__post_init__"))]


def _or_none(value: Any) -> Any:
    return msgspec.NODEFAULT if value is dataclasses.MISSING else value


def _is_plain_hint(hint: Any) -> bool:
    """Return whether a type hint is a plain type, or a union of such."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return all(map(_is_plain_hint, typing.get_args(hint)))
    return hint is None or (isinstance(hint, type) and hint in PLAIN)
