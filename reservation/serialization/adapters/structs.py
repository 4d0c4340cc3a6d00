"""`msgspec.Struct`s."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from reservation.serialization.adapters.adapter import (
    ClassAdapter,
    FieldForm,
    UnfitClassError,
    camel_case,
    factories,
)

# Any: classes and values of any component.


class StructAdapter(ClassAdapter):
    """The adapter of Structs."""

    is_native = True

    def recognizes(self, class_: Any) -> bool:
        return issubclass(class_, msgspec.Struct)

    def forms(self, class_: Any) -> list[FieldForm]:
        if class_.__struct_config__.array_like:
            raise UnfitClassError(
                f"{class_.__name__} is a Struct with array_like=True, and a message is an object "
                f"with named fields; leave array_like=True out"
            )
        return [
            FieldForm(
                field.name,
                # A name that it does not change cannot be told from one that nobody gave.
                camel_case(field.name) if field.encode_name == field.name else field.encode_name,
                field.type,
                default=field.default,
                factory=field.default_factory,
            )
            for field in msgspec.structs.fields(class_)
        ]

    def options(self, class_: Any) -> dict[str, Any]:
        said = class_.__struct_config__
        names = ("omit_defaults", "forbid_unknown_fields", "tag", "tag_field")
        return {name: getattr(said, name) for name in names}

    def maker(self, class_: Any) -> Callable[[dict[str, Any]], Any]:
        return lambda values: class_(**values)

    def is_frozen(self, class_: Any) -> bool:
        return bool(class_.__struct_config__.frozen) and not hasattr(class_, "__deepcopy__")

    def runs_code(self, class_: Any) -> bool:
        return hasattr(class_, "__post_init__")

    def sets_as_stored(self, class_: Any, names: Sequence[str]) -> bool:
        del names
        return not self.runs_code(class_)

    def code(self, class_: Any, code_of: Callable[[Any], list[Any]]) -> list[Any]:
        made = [code_of(factory) for factory in factories(self.forms(class_))]
        return [made, code_of(getattr(class_, "__post_init__", None))]
