"""Pydantic models, whose own validator makes each instance.

The form in JSON is that of all kinds: Pydantic gets values that are decoded already. Only a type
that is Pydantic's own, such as `HttpUrl`, is read and written as Pydantic does.
"""

import functools
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from reservation.raised import describe
from reservation.serialization.adapters.adapter import (
    ClassAdapter,
    FieldForm,
    RefusedValuesError,
    UnfitClassError,
    caches,
    camel_case,
    factories,
    with_classes,
)

# Any: classes, type hints and values of any component.

# What the text of an error may repeat: that is declared, and nothing of the value.
_DECLARED = {
    *("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "expected"),
    *("field_type", "actual_length", "max_digits", "decimal_places", "whole_digits"),
    *("expected_version", "class", "class_name", "discriminator", "expected_schemes"),
}

# Settings with which Pydantic changes texts.
_CHANGING = ("str_strip_whitespace", "str_to_lower", "str_to_upper")


class ModelAdapter(ClassAdapter):
    """The adapter of Pydantic's models."""

    is_native = False

    def recognizes(self, class_: Any) -> bool:
        return hasattr(class_, "__pydantic_validator__") or _is_version_1(class_)

    def forms(self, class_: Any) -> list[FieldForm]:
        _check(class_)
        by_name = any(_config(class_, n) for n in ("populate_by_name", "validate_by_name"))
        forms = []
        for name, field in class_.model_fields.items():
            default = None if field.is_required() else field.default
            missing = field.is_required() or field.default_factory is not None
            if field.exclude:
                if field.is_required():
                    raise UnfitClassError(
                        f"its field {name} has exclude=True and no default, so it could not be "
                        f"read again; give it a default"
                    )
                continue
            key = field.serialization_alias or camel_case(name)
            read = [*_validation_aliases(name, field), *([name] if by_name else [])]
            forms.append(
                FieldForm(
                    name,
                    key,
                    _stored_hint(name, field),
                    aliases=tuple(one for one in dict.fromkeys(read) if one != key),
                    default=msgspec.NODEFAULT if missing else default,
                    factory=field.default_factory or msgspec.NODEFAULT,
                )
            )
        return forms

    def options(self, class_: Any) -> dict[str, Any]:
        return {"forbid_unknown_fields": _config(class_, "extra") == "forbid"}

    def maker(self, class_: Any) -> Callable[[dict[str, Any]], Any]:
        import pydantic  # it is there where such a class is

        validate = class_.__pydantic_validator__.validate_python
        taken = _taken(class_)
        keys = {taken[form.name]: form.key for form in self.forms(class_)}

        def make(values: dict[str, Any]) -> Any:
            try:
                return validate({taken[name]: value for name, value in values.items()})
            except pydantic.ValidationError as error:
                raise RefusedValuesError(list(_problems(error, keys))) from None

        return make

    def create(self, class_: Any, attributes: Mapping[str, Any]) -> Any:
        taken = _taken(class_)
        if unknown := attributes.keys() - taken.keys():
            raise TypeError(f"{class_.__name__} has no field {min(unknown)!r}")
        return class_(**{taken[name]: value for name, value in attributes.items()})

    def is_frozen(self, class_: Any) -> bool:
        import pydantic

        return bool(
            _config(class_, "frozen")
            and _config(class_, "extra") != "allow"
            and not class_.__private_attributes__
            and class_.__deepcopy__ is pydantic.BaseModel.__deepcopy__
            and not caches(class_)
        )

    def runs_code(self, class_: Any) -> bool:
        del class_
        return True  # its types may do so, too

    def sets_as_stored(self, class_: Any, names: Sequence[str]) -> bool:
        said = class_.__pydantic_decorators__
        if said.model_validators or said.root_validators or class_.__pydantic_custom_init__:
            return False
        if class_.__pydantic_post_init__ or any(_config(class_, name) for name in _CHANGING):
            return False
        validators = [*said.field_validators.values(), *said.validators.values()]
        validated = {name for one in validators for name in one.info.fields}
        return not validated & {"*", *names} and not any(
            class_.model_fields[name].metadata for name in names
        )

    def code(self, class_: Any, code_of: Callable[[Any], list[Any]]) -> list[Any]:
        said = class_.__pydantic_decorators__
        validators = [*said.field_validators.items(), *said.model_validators.items()]
        # Pydantic wraps these, so that their functions are found by their names alone.
        deprecated = [*said.validators.items(), *said.root_validators.items()]
        metadata = {name: repr(field.metadata) for name, field in class_.model_fields.items()}
        return [
            [code_of(factory) for factory in factories(self.forms(class_))],
            [[name, repr(one.info), code_of(one.func)] for name, one in validators]
            + [[name, repr(one.info), code_of(getattr(class_, name))] for name, one in deprecated],
            metadata,
            code_of(vars(class_).get("model_post_init")),
        ]

    def state(self, instance: Any, names: Sequence[str]) -> dict[str, Any]:
        return super().state(instance, names) | (instance.__pydantic_private__ or {})


def plain(value: Any) -> Any:
    """Return a value of a type that is Pydantic's own as JSON has it."""
    core = sys.modules.get("pydantic_core")
    if core is None or not hasattr(type(value), "__get_pydantic_core_schema__"):
        raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")
    return core.to_jsonable_python(value)


def _is_version_1(class_: Any) -> bool:
    return hasattr(class_, "__validators__") and hasattr(class_, "__config__")


def _config(class_: Any, name: str) -> Any:
    return class_.model_config.get(name)


def _check(class_: Any) -> None:
    """Refuse a model that would lose something, or that is no object with fields."""
    name = class_.__name__
    if _is_version_1(class_):
        raise UnfitClassError(
            f"{name} is a model of Pydantic 1; derive it from the BaseModel of Pydantic 2"
        )
    if class_.__pydantic_root_model__:
        raise UnfitClassError(
            f"{name} is a RootModel, and a message is an object with named fields; give it a field"
        )
    if _config(class_, "extra") == "allow":
        raise UnfitClassError(
            f"{name} has extra='allow', whose values no type describes; declare a field of the "
            f"type dict[str, Any] instead"
        )
    said = class_.__pydantic_decorators__
    if said.field_serializers or said.model_serializers or _config(class_, "json_encoders"):
        raise UnfitClassError(
            f"{name} has a serializer, and fields are stored by their types; leave it out, or "
            f"annotate the field with the type that is to be stored"
        )
    if not class_.__pydantic_complete__:
        try:
            class_.model_rebuild()
        except NameError as error:  # its text has several lines
            raise UnfitClassError(
                f"{name} refers to {error.name}, which is not defined yet; define it before"
            ) from error


def _validation_aliases(name: str, field: Any) -> list[str]:
    """Return the names under which a field is read."""
    alias = field.validation_alias
    choices = getattr(alias, "choices", [] if alias is None else [alias])
    if not all(isinstance(one, str) for one in choices):
        raise UnfitClassError(
            f"its field {name} has an AliasPath, and a field is read under a name; use a nested "
            f"model, or an upcaster"
        )
    return list(choices)


@functools.cache
def _taken(class_: Any) -> dict[str, str]:
    """Return the names under which the validator takes the fields."""
    if _config(class_, "validate_by_alias") is False:
        return {name: name for name in class_.model_fields}
    return {
        name: next(iter(_validation_aliases(name, field)), name)
        for name, field in class_.model_fields.items()
    }


def _stored_hint(name: str, field: Any) -> Any:
    """Return a field's type, with `Any` in the place of types that are Pydantic's own."""
    from pydantic import PlainSerializer, WrapSerializer

    said = (*field.metadata, *_metadata(field.annotation))
    if getattr(field, "exclude_if", None) is not None or any(
        isinstance(one, PlainSerializer | WrapSerializer) for one in said
    ):
        raise UnfitClassError(
            f"its field {name} has a serializer or exclude_if, and fields are stored by their "
            f"types; annotate it with the type that is to be stored"
        )

    def stored(class_: Any) -> Any:
        if hasattr(class_, "get_secret_value"):
            raise UnfitClassError(
                f"its field {name} holds a {class_.__name__}, which hides its value; keep the "
                f"secret elsewhere, and store what names it"
            )
        own = hasattr(class_, "__get_pydantic_core_schema__")
        return Any if own and not hasattr(class_, "__pydantic_validator__") else class_

    return with_classes(field.annotation, stored)


def _metadata(hint: Any) -> Iterator[Any]:
    """Yield what `Annotated` adds anywhere in a type hint."""
    yield from getattr(hint, "__metadata__", ())
    for part in typing.get_args(hint):
        yield from _metadata(part)


def _problems(error: Any, keys: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the path and the reason of each problem, without the value."""
    for one in error.errors(include_url=False, include_input=False):
        field, *further = one["loc"] or ("",)
        path = f".{keys[field]}" if field in keys else ""
        yield path + ("[...]" if path and further else ""), _reason(one)


def _reason(problem: Mapping[str, Any]) -> str:
    from pydantic_core import PydanticKnownError

    context = problem.get("ctx", {})
    raised = context.get("error")
    if isinstance(raised, Exception):
        return describe(raised)
    if context.keys() <= _DECLARED:
        try:  # Pydantic's own text: a validator may give an error of the same type another one
            return PydanticKnownError(problem["type"], context).message()
        except (KeyError, TypeError):  # not a type of Pydantic, or not with this context
            pass
    return f"Invalid value ({problem['type']})"
