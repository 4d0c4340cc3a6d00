"""The changed fields of a JSON object, and the object with the changes in it.

Values are compared and kept as the text that they are.
"""

import msgspec

_Fields = dict[str, msgspec.Raw]
_fields = msgspec.json.Decoder(_Fields)


class _Delta(msgspec.Struct, omit_defaults=True):
    """The fields that are new or otherwise, and the names of those that are gone."""

    changed: _Fields = {}
    gone: list[str] = []


_delta = msgspec.json.Decoder(_Delta)


def difference(before: str, after: str) -> str:
    """Return what `apply` needs to make one JSON object of another."""
    old, new = _fields.decode(before), _fields.decode(after)
    changed = {
        name: value
        for name, value in new.items()
        if name not in old or bytes(old[name]) != bytes(value)
    }
    gone = [name for name in old if name not in new]
    return msgspec.json.encode(_Delta(changed, gone)).decode()


def apply(text: str, delta: str) -> str:
    """Return the text of a JSON object with the changes of `difference` made to it."""
    fields, change = _fields.decode(text), _delta.decode(delta)
    for name in change.gone:
        fields.pop(name, None)
    return msgspec.json.encode(fields | change.changed).decode()
