"""Keys and digests of archived messages, made again by the declaration of today.

An archive holds what the server made of each message by the declaration of its time. Where the
component declares other keys today, or the archive has its first form, Spark's workers make the
same of the data, as `columns.sql` defines it.
"""

import re
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom
from pyspark.sql.pandas.functions import arrow_udf

from reservation.messages import stream_name
from spark_jobs.archive.content import digest
from spark_jobs.common.declaration import Declaration, DeclaredKey

_MADE = "struct<content: string, key_category: string, key_stream: string, is_copy: boolean>"
_OF = ("type", "stream_name", "position", "data", "metadata")

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_WHOLE = re.compile("-?[0-9]+")


def remade(messages: DataFrame, declaration: Declaration) -> DataFrame:
    """Return messages with new keys and digests.

    Args:
        messages: with the columns of the archive.
        declaration: how keys are made.
    """
    # The stub asks for the kind of function, which Spark infers.
    made = arrow_udf(_made(declaration), _MADE)  # type: ignore[call-overload]
    columns = ("content", "key_category", "key_stream", "is_copy")
    return (
        messages.withColumn("made", made(*_OF))
        .withColumns({name: F.col(f"made.{name}") for name in columns})
        .drop("made")
    )


def _made(declaration: Declaration) -> Callable[..., pa.Array]:
    type_ = pa.struct(
        [
            ("content", pa.string()),
            ("key_category", pa.string()),
            ("key_stream", pa.string()),
            ("is_copy", pa.bool_()),
        ]
    )

    def made(*columns: pa.Array) -> pa.Array:
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        return pa.array([of_message(declaration.keys, *row) for row in rows], type_)

    return made


def of_message(
    keys: dict[str, DeclaredKey],
    type_: str,
    stream: str,
    position: int,
    data: str | None,
    metadata: str | None,
) -> dict[str, Any]:
    """Return what is made of one message, by the names of the columns.

    Args:
        keys: how keys are made, by type.
        type_: the message's type.
        stream: its stream.
        position: its position there.
        data: its data, as the server gives the text of a jsonb.
        metadata: its metadata, likewise.
    """
    key = keys.get(type_)
    if key is None:
        return {
            "content": digest(data, ()),
            "key_category": None,
            "key_stream": None,
            "is_copy": False,
        }
    fields = _fields(data)
    return {
        "content": digest(data, key.volatile),
        "key_category": key.category,
        "key_stream": _key_stream(key, fields, stream),
        "is_copy": key.within and position == 0 and _is_copy(key, fields, stream, metadata),
    }


def _is_copy(
    key: DeclaredKey, fields: dict[str, msgspec.Raw], stream: str, metadata: str | None
) -> bool:
    """Return whether a message is marked as a copy, and where its reservation would be."""
    about = _fields(metadata)
    source = _text(about.get("causationMessageStreamName"))
    local = _fields(_raw(about.get("localProperties")))
    if source is None or _raw(local.get("reserved")) != "true":
        return False
    if key.by_function:
        return stream.startswith(_beneath(source))
    return stream == _key_stream(key, fields, source)


def _key_stream(key: DeclaredKey, fields: dict[str, msgspec.Raw], sent_to: str) -> str | None:
    """Return the stream that a key names; None if one of its parts is unusable."""
    parts = []
    for n, (name, kind) in enumerate(zip(key.fields, key.kinds, strict=True), start=1):
        if kind == "string":
            part = _text(fields.get(name))
            if part and stream_name.COMPOUND_SEPARATOR in part:
                # The last part may hold what separates the others.
                part = part if n == len(key.fields) and not key.within else None
        else:
            part = _raw(fields.get(name))
            part = part if part and _WHOLE.fullmatch(part) else None
        if not part:
            return None
        parts.append(part)
    if not parts:
        return None
    prefix = _beneath(sent_to) if key.within else key.category + stream_name.ID_SEPARATOR
    return prefix + stream_name.COMPOUND_SEPARATOR.join(parts)


def _beneath(sent_to: str) -> str:
    is_category = stream_name.is_category(sent_to)
    return sent_to + (stream_name.ID_SEPARATOR if is_category else stream_name.COMPOUND_SEPARATOR)


def _fields(text: str | None) -> dict[str, msgspec.Raw]:
    """Return the fields of a JSON object; none of anything else."""
    return _OBJECT.decode(text) if text is not None and text.startswith("{") else {}


def _raw(value: msgspec.Raw | None) -> str | None:
    return None if value is None else bytes(value).decode()


def _text(value: msgspec.Raw | None) -> str | None:
    """Return a JSON value that is a text; None for any other."""
    raw = _raw(value)
    return msgspec.json.decode(raw, type=str) if raw is not None and raw.startswith('"') else None
