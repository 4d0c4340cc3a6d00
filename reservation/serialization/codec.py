"""Between messages of any kind of class and the camelCase JSON that Message DB's clients expect.

msgspec converts and validates, through the `twin` of each class. Numbers of type `Decimal` are JSON
numbers, digit for digit. For each class a function to encode and a function to decode are made
once. What PostgreSQL would not take (`reservation.serialization.json_limits`) is refused here, and
the error names the field.
"""

from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeVar

import msgspec

from reservation.raised import describe
from reservation.serialization import json_limits
from reservation.serialization.adapters.adapter import (
    RefusedValuesError,
    UnfitClassError,
    camel_case,
)
from reservation.serialization.fields import forms_of
from reservation.serialization.json_limits import DEFAULT_MAX_BYTES
from reservation.serialization.making import is_native, maker, runs_code, shaper
from reservation.serialization.stored_text import stored_text
from reservation.serialization.struct_types import twin, without_form

__all__ = [
    "DEFAULT_MAX_BYTES",
    "camel_case",
    "decode",
    "decode_encoded",
    "encode",
    "explain",
    "prepare",
]

T = TypeVar("T")

_CHANGED = (
    "Decoding would change it; validators, converters and __post_init__ have to leave a value as "
    "it is that they made"
)


def encode(message: object, max_bytes: int = DEFAULT_MAX_BYTES) -> str:
    """Return a message or an entity as JSON text.

    One that its class would refuse to read, or would change, is refused with the field's name.
    """
    class_: Any = type(message)
    encode_one = _encoders[class_]
    try:
        data = encode_one(message)
    except (TypeError, ValueError, OverflowError, RecursionError):  # none names a field
        problem = json_limits.problem(message, json_limits.ALL)
        if problem is None:
            raise
        raise problem from None
    text: str = data.decode()
    json_limits.check_text(message, text, len(data), max_bytes)
    return text


def decode(type_: type[T], data: str) -> T:
    """Return JSON text as an instance of a class.

    Fields that the class does not have are ignored, unless it forbids them.
    """
    class_: Any = type_
    try:
        message: T = _decoders[class_](data)
    except RecursionError:
        raise json_limits.too_deep() from None
    return message


def decode_encoded(type_: type[T], data: str) -> T:
    """Return what a reader of the store gets for JSON text that `encode` returned."""
    return decode(type_, stored_text(type_, data))


def explain(error: Exception) -> str:
    """Return what an error says of the field and the kind, without the value that it may repeat."""
    if isinstance(error, RefusedValuesError | UnfitClassError):
        return str(error)
    if not isinstance(error, msgspec.MsgspecError):
        return describe(error)
    if error.__cause__ is not None:  # raised by a class that checks its values
        return describe(error.__cause__)
    head, at, path = str(error).rpartition(" - at `")
    head = head or path
    if head.startswith(("Invalid enum value", "Invalid value")):  # the value follows
        head = "Invalid value"
    return f"{head}{at}{path}" if at else head


def prepare(type_: type) -> None:
    """Make the twin of a class, so that a type without a form in JSON is found at once.

    msgspec has no form for classes that it does not know, and for keys of dictionaries that are not
    texts.
    """
    class_: Any = type_
    _decoders[class_]
    for field in msgspec.inspect.type_info(twin(class_)).fields:  # type: ignore[attr-defined]
        problem = without_form(field.type)
        if problem is not None:
            raise TypeError(f"its field {field.name} holds {problem}, which JSON cannot represent")


# Any, from here on: structs that are made at run time have no static type.


def _make_encoder(type_: Any) -> Callable[[Any], bytes]:
    encode_json, convert, twin_type = json_limits.encoder.encode, msgspec.convert, twin(type_)
    shaped = None if is_native(type_) else shaper(type_)
    check_read = _reading_check(type_) if runs_code(type_) else None
    to_check = [(name, look.checks) for name, look in json_limits.fields(type_, json_limits.HIDDEN)]

    def encode_one(message: Any) -> bytes:
        if shaped is None:
            data = encode_json(convert(message, twin_type, from_attributes=True))
        else:
            data = encode_json(shaped(message))
        for name, kinds in to_check:
            if value := getattr(message, name):  # an empty value cannot be wrong
                check = kinds.get(type(value))
                if check is None or check(value):
                    json_limits.check(message, json_limits.HIDDEN)
                    break
        if check_read is not None:
            check_read(data)
        return data

    return encode_one


def _reading_check(type_: Any) -> Callable[[bytes], None]:
    """Return what refuses JSON of an instance that its class would not read, or would change.

    Code of the class gets what is decoded of the JSON, and never the values of the instance.
    """
    read, make = msgspec.json.Decoder(twin(type_)).decode, maker(type_)
    shaped, encode_json = shaper(type_), json_limits.encoder.encode

    def check_read(data: bytes) -> None:
        again = encode_json(shaped(make(read(data))))
        if again == data:
            return
        # The code may have changed what it was given. A set has no order.
        written, changed = read(data), read(again)
        for form in forms_of(type_):
            if getattr(written, form.name) != getattr(changed, form.name):
                raise RefusedValuesError([(f".{form.key}", _CHANGED)])

    return check_read


def _make_decoder(type_: Any) -> Callable[[str], Any]:
    """Return the function that decodes a class."""
    read, make = msgspec.json.Decoder(twin(type_)).decode, maker(type_)
    with_decimals = [name for name, _ in json_limits.fields(type_, json_limits.DECODED)]

    def decode_one(data: str) -> Any:
        message = make(read(data))
        for name in with_decimals:
            value = getattr(message, name)
            if type(value) is not Decimal or not value.is_finite():
                json_limits.check(message, json_limits.DECODED)
                break
        return message

    return decode_one


class _Made(dict[Any, Callable[[Any], Any]]):
    """The function for each class, made at its first use; a dict is the fastest to look up."""

    def __init__(self, make: Callable[[Any], Callable[[Any], Any]]) -> None:
        self._make = make

    def __missing__(self, type_: Any) -> Callable[[Any], Any]:
        made = self[type_] = self._make(type_)
        return made


_encoders = _Made(_make_encoder)
_decoders = _Made(_make_decoder)
