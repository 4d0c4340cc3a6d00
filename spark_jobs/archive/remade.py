"""Keys and digests of archived messages, made again by the declaration of today.

An archive holds what the server made of each message by the declaration of its time. Where the
component declares other keys today, Spark's workers make the same of the data, as `columns.sql`
defines it.
"""

import re
from collections.abc import Callable

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom
from pyspark.sql.pandas.functions import arrow_udf

from reservation.errors import StreamNameError
from reservation.messages import stream_name
from spark_jobs.common.declaration import Declaration, DeclaredKey
from spark_jobs.facts.content import digest

_COLUMNS = ("content", "key_category", "key_stream")
_MADE = f"struct<{', '.join(f'{name}: string' for name in _COLUMNS)}>"

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_WHOLE = re.compile("-?[0-9]+")


def remade(messages: DataFrame, declaration: Declaration) -> DataFrame:
    """Return messages with new keys and digests."""
    # The stub asks for the kind of function, which Spark infers.
    made = arrow_udf(_made(declaration), _MADE)  # type: ignore[call-overload]
    return (
        messages.withColumn("made", made("type", "data"))
        .withColumns({name: F.col(f"made.{name}") for name in _COLUMNS})
        .drop("made")
    )


def _made(declaration: Declaration) -> Callable[..., pa.Array]:
    def made(*columns: pa.Array) -> pa.Array:
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        of_rows = [_of_message(declaration.keys, *row) for row in rows]
        return pa.array(of_rows, pa.struct([(name, pa.string()) for name in _COLUMNS]))

    return made


def _of_message(
    keys: dict[str, DeclaredKey], type_: str, data: str | None
) -> tuple[str | None, str | None, str | None]:
    key = keys.get(type_)
    if key is None:
        return digest(data, ()), None, None
    return digest(data, key.ignoring), key.category, _key_stream(key, _fields(data))


def _key_stream(key: DeclaredKey, fields: dict[str, msgspec.Raw]) -> str | None:
    """Return the stream that a key names; None if one of its parts is unusable."""
    parts = []
    for n, (name, kind) in enumerate(zip(key.fields, key.kinds, strict=True), start=1):
        if kind == "string":
            part = _text(fields.get(name))
            if part and stream_name.COMPOUND_SEPARATOR in part:
                # The last part may hold what separates the others.
                part = part if n == len(key.fields) else None
        else:
            part = _raw(fields.get(name))
            part = part if part and _WHOLE.fullmatch(part) else None
        if not part:
            return None
        parts.append(part)
    if not parts:
        return None
    try:
        return stream_name.of(key.category, *parts)
    except StreamNameError:
        return None


def _fields(text: str | None) -> dict[str, msgspec.Raw]:
    """Return the fields of a JSON object; none of anything else."""
    return _OBJECT.decode(text) if text is not None and text.startswith("{") else {}


def _raw(value: msgspec.Raw | None) -> str | None:
    return None if value is None else bytes(value).decode()


def _text(value: msgspec.Raw | None) -> str | None:
    """Return a JSON value that is a text; None for any other."""
    raw = _raw(value)
    return msgspec.json.decode(raw, type=str) if raw is not None and raw.startswith('"') else None
