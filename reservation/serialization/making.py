"""From an instance to its twin, and back.

msgspec does both where a class and all classes in its fields are native to it: dataclasses and
Structs. It sets the fields, without the class's own `__init__`, and calls `__post_init__`. Others
are made by their own constructor, the innermost first.
"""

import functools
import typing
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec

from reservation.serialization.adapters.adapter import FieldForm, RefusedValuesError
from reservation.serialization.fields import (
    adapter_of,
    classes_in,
    forms_of,
    hints_of,
    is_message,
    is_message_class,
)
from reservation.serialization.struct_types import alias_names, class_of, twin

# Any, throughout: structs that are made at run time have no static type.


@functools.cache
def is_native(class_: Any) -> bool:
    """Return whether msgspec makes instances of a class, and all that is in their fields."""
    if not adapter_of(class_).is_native or _is_beyond_convert(class_):
        return False
    return all(is_native(one) for hint in hints_of(class_).values() for one in classes_in(hint))


@functools.cache
def runs_code(class_: Any) -> bool:
    """Return whether code of a class, or of one in its fields, gets the values that are read."""
    if adapter_of(class_).runs_code(class_):
        return True
    return any(runs_code(one) for hint in hints_of(class_).values() for one in classes_in(hint))


@functools.cache
def maker(class_: Any) -> Callable[[Any], Any]:
    """Return the function that makes an instance of a class of its twin."""
    if not is_native(class_):
        return _own_maker(class_)
    if not adapter_of(class_).holds_plain_values(class_):
        return functools.partial(msgspec.convert, type=class_, from_attributes=True)
    # Values that are set all at once take less than half of the time.
    new, values_of = object.__new__, msgspec.structs.asdict

    def make(read: Any) -> Any:
        made = new(class_)
        made.__dict__.update(values_of(read))
        return made

    return make


def _own_maker(class_: Any) -> Callable[[Any], Any]:
    forms, adapter = forms_of(class_), adapter_of(class_)
    make, values_of = adapter.maker(class_), msgspec.structs.asdict
    holding = [form for form in forms if classes_in(form.hint)]
    aliased = [(form, alias_names(form)) for form in forms if form.aliases]

    def made(read: Any) -> Any:
        values = values_of(read)
        if not adapter.is_native:  # then it fills in itself what is missing
            values = {name: one for name, one in values.items() if one is not msgspec.UNSET}
        for form, names in aliased:
            given = [values.pop(name) for name in names if name in values]
            if given:
                values.setdefault(form.name, given[0])
            elif form.name not in values and form.required:
                raise RefusedValuesError([("", f"Object missing required field `{form.key}`")])
        for form in holding:
            if form.name in values:
                values[form.name] = _part(values[form.name], form)
        return make(values)

    return made


def _part(value: Any, form: FieldForm) -> Any:
    try:
        return _made(value)
    except RefusedValuesError as error:
        raise error.within(f".{form.key}") from None


def _made(value: Any) -> Any:
    """Return a value of a twin's field with instances in the place of their twins."""
    kind = type(value)
    if kind in class_of:
        return maker(class_of[kind])(value)
    if kind not in (dict, list, tuple, set, frozenset):
        return value
    try:
        if kind is dict:
            return {key: _made(part) for key, part in value.items()}
        return kind(map(_made, value))
    except RefusedValuesError as error:
        raise error.within("[...]") from None


@functools.cache
def shaper(class_: Any) -> Callable[[Any], Any]:
    """Return the function that makes the twin of an instance, and checks it against the types."""
    twin_type = twin(class_)
    if not _is_beyond_convert(class_):
        return functools.partial(msgspec.convert, type=twin_type, from_attributes=True)
    names = [form.name for form in forms_of(class_)]

    def shaped(message: Any) -> Any:
        values = {name: _shaped(getattr(message, name)) for name in names}
        given = {name: one for name, one in values.items() if one is not msgspec.UNSET}
        whole = msgspec.convert(SimpleNamespace(**given), twin_type, from_attributes=True)
        for name in values.keys() - given.keys():
            setattr(whole, name, msgspec.UNSET)
        return whole

    return shaped


def _shaped(value: Any) -> Any:
    class_: Any = type(value)
    if is_message(value):
        return shaper(class_)(value)
    if isinstance(value, dict):
        return {key: _shaped(part) for key, part in value.items()}
    return class_(map(_shaped, value)) if class_ in (list, tuple) else value


@functools.cache
def _is_beyond_convert(class_: Any) -> bool:
    """Return whether `msgspec.convert` cannot make a class of its twin, or the twin of it.

    It cannot tell which class of a union an instance is of, although it knows the twins, and it
    takes no unset attributes.
    """
    return any(map(_holds_what_convert_cannot, hints_of(class_).values()))


def _holds_what_convert_cannot(hint: Any) -> bool:
    if is_message_class(hint):
        return _is_beyond_convert(hint)
    parts = typing.get_args(hint)
    if msgspec.UnsetType in parts or sum(map(is_message_class, parts)) > 1:
        return True
    return any(map(_holds_what_convert_cannot, parts))
