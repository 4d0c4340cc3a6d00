"""attrs classes, whose constructor converts and validates."""

import functools
import linecache
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import msgspec

from reservation.raised import describe
from reservation.serialization.adapters.adapter import (
    ClassAdapter,
    FieldForm,
    RefusedValuesError,
    UnfitClassError,
    attributes_only,
    camel_case,
    factories,
)

# Any: classes and values of any component.

# The line of a constructor, as attrs writes it, that validates or converts a field.
_CALL = re.compile(r"__attr_(?:validator|converter)_(\w+)\(")


class AttrsAdapter(ClassAdapter):
    """The adapter of attrs classes."""

    is_native = False

    def recognizes(self, class_: Any) -> bool:
        return hasattr(class_, "__attrs_attrs__")

    def forms(self, class_: Any) -> list[FieldForm]:
        import attr  # it is there where such a class is

        hints = typing.get_type_hints(class_, include_extras=True)
        forms = []
        taken = {camel_case(field.alias) for field in class_.__attrs_attrs__}
        for field in class_.__attrs_attrs__:
            hint = hints.get(field.name, field.type)
            if hint is None:
                raise UnfitClassError(f"its field {field.name} has no type; annotate it")
            if type(field.default).__hash__ is None:
                raise UnfitClassError(
                    f"its field {field.name} has a default that may change, and all instances "
                    f"would share it; give the field a factory= instead"
                )
            is_made = isinstance(field.default, attr.Factory)  # type: ignore[arg-type]
            missing = msgspec.NODEFAULT
            # The name that it has where the class is of another kind.
            other = camel_case(field.name)
            forms.append(
                FieldForm(
                    field.name,
                    camel_case(field.alias),
                    hint,
                    aliases=() if other in taken else (other,),
                    default=missing if is_made or field.default is attr.NOTHING else field.default,
                    factory=field.default.factory if is_made else missing,
                    in_constructor=field.init,
                )
            )
        return forms

    def maker(self, class_: Any) -> Callable[[dict[str, Any]], Any]:
        new, set_ = class_.__new__, object.__setattr__
        # Where the class has a constructor of its own, that of attrs has another name.
        initialize = getattr(class_, "__attrs_init__", class_.__init__)
        names = {field.name: field.alias for field in class_.__attrs_attrs__ if field.init}
        others = [field.name for field in class_.__attrs_attrs__ if not field.init]
        keys = {form.name: form.key for form in self.forms(class_)}

        def make(values: dict[str, Any]) -> Any:
            made = new(class_)
            try:
                initialize(made, **{names[n]: v for n, v in values.items() if n in names})
            except Exception as error:  # noqa: BLE001  a class may check itself as it likes
                raise RefusedValuesError([_problem(error, keys)]) from None
            for name in others:
                if name in values:
                    set_(made, name, values[name])
            return made

        return make

    def create(self, class_: Any, attributes: Mapping[str, Any]) -> Any:
        aliases = _aliases(class_)
        return class_(**{aliases.get(name, name): value for name, value in attributes.items()})

    def is_frozen(self, class_: Any) -> bool:
        # Releases before 25.4 do not say it; such a class is taken for one that may change.
        said = vars(class_).get("__attrs_props__")
        if said is None or not said.is_frozen or hasattr(class_, "__getattr__"):
            return False
        return attributes_only(class_)

    def runs_code(self, class_: Any) -> bool:
        if any(hasattr(class_, n) for n in ("__attrs_pre_init__", "__attrs_post_init__")):
            return True
        return any(field.converter or field.validator for field in class_.__attrs_attrs__)

    def sets_as_stored(self, class_: Any, names: Sequence[str]) -> bool:
        own = ("__attrs_pre_init__", "__attrs_post_init__", "__attrs_init__")
        if any(hasattr(class_, name) for name in own):
            return False
        return not any(field.converter for field in class_.__attrs_attrs__ if field.name in names)

    def code(self, class_: Any, code_of: Callable[[Any], list[Any]]) -> list[Any]:
        fields = class_.__attrs_attrs__
        made = [code_of(factory) for factory in factories(self.forms(class_))]
        functions = [[code_of(field.converter), code_of(field.validator)] for field in fields]
        return [made, functions, code_of(getattr(class_, "__attrs_post_init__", None))]


@functools.cache
def _aliases(class_: Any) -> dict[str, str]:
    """Return the names under which the constructor takes the fields."""
    return {field.name: field.alias for field in class_.__attrs_attrs__}


def _problem(error: Exception, keys: Mapping[str, str]) -> tuple[str, str]:
    """Return the path of the field that the constructor refused, and the reason."""
    path, reason = "", describe(error)
    at: TracebackType | None = error.__traceback__
    while at is not None:
        frame = at.tb_frame
        if frame.f_code.co_filename.startswith("<attrs generated"):
            line = linecache.getline(frame.f_code.co_filename, at.tb_lineno)
            if (found := _CALL.search(line)) and found[1] in keys:
                path = f".{keys[found[1]]}"
        # A validator of attrs itself says what it wants; the text of its error has the value.
        if at.tb_next is None and frame.f_globals.get("__name__") == "attr.validators":
            reason = f"Refused by {frame.f_locals.get('self')!r}"
        at = at.tb_next
    return path, reason
