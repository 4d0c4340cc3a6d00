"""The JSON text that a reader of the store gets for a text that was written.

jsonb keeps values and not their text: keys of objects are sorted, numbers are written without
exponents, and zero has no sign. So what is read can differ from what was written, and a consumer
has to project what every other reader will read.
"""

from decimal import Decimal
from typing import Any

import msgspec

from reservation.serialization.struct_types import decodes_as_written

_encoder = msgspec.json.Encoder(decimal_format="number")
# Any: whatever JSON holds.
_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(float_hook=Decimal)


def stored_text(type_: type, text: str) -> str:
    """Return JSON text from which a class is decoded as it will be from the store."""
    if not decodes_as_written(type_) or "E+" in text:
        return as_jsonb(text)
    # Perhaps a negative zero; if it is anything else, only time is lost.
    if ":-0" in text or "[-0" in text or ",-0" in text:
        return as_jsonb(text)
    return text


def as_jsonb(text: str) -> str:
    """Return JSON text with its keys in the order, and its numbers in the form, of jsonb."""
    return _encoder.encode(_as_jsonb(_decoder.decode(text))).decode()


def _as_jsonb(value: Any) -> Any:
    """Rewrite a value in place, with one call a level, because messages may be deep."""
    if isinstance(value, dict):
        for key in sorted(value, key=_place):
            value[key] = _as_jsonb(value.pop(key))
    elif isinstance(value, list):
        for n, item in enumerate(value):
            value[n] = _as_jsonb(item)
    elif isinstance(value, Decimal):
        return Decimal(f"{value if value else abs(value):f}")
    return value


def _place(key: str) -> tuple[int, bytes]:
    """Return what jsonb sorts a key by: first its length."""
    encoded = key.encode()
    return len(encoded), encoded
