"""The digest of a message's content, computed from archived data as the server computes it.

An archive holds the digests of the server. Runs of the archive's first form hold other hashes, so
their messages get new digests when they are read (`columns.sql` defines them).
"""

import hashlib
import json
import re
from collections.abc import Callable, Sequence

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.functions import arrow_udf

from spark_jobs.common.declaration import Declaration

_DIGITS = 32  # 128 bits

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TRAILING_ZEROS = re.compile(r'("(?:[^"\\]|\\.)*+")|(\.[0-9]*[1-9])0+(?![0-9])|\.0+(?![0-9])')


def digest(data: str | None, volatile: Sequence[str]) -> str:
    """Return the digest of a message's data without its volatile fields.

    Args:
        data: the text that the server gives for the jsonb; None if the message has no data.
        volatile: the JSON names of the fields that are left out.
    """
    if data is None:
        return ""
    if volatile and data.startswith("{"):
        fields = _OBJECT.decode(data)
        kept = (
            f"{json.dumps(name, ensure_ascii=False)}: {bytes(value).decode()}"
            for name, value in fields.items()
            if name not in volatile
        )
        data = "{" + ", ".join(kept) + "}"
    if "." in data:
        data = _TRAILING_ZEROS.sub(lambda found: found[1] or found[2] or "", data)
    return hashlib.sha256(data.encode()).hexdigest()[:_DIGITS]


def with_digests(messages: DataFrame, declaration: Declaration) -> DataFrame:
    """Return messages with new digests of their contents, computed by Spark's workers.

    Args:
        messages: with the columns ``type``, ``data`` and ``content``.
        declaration: says which fields are volatile.
    """
    volatile = {type_: key.volatile for type_, key in declaration.keys.items()}
    # The stub asks for the kind of function, which Spark infers.
    made = arrow_udf(_digests(volatile), "string")  # type: ignore[call-overload]
    return messages.withColumn("content", made("type", "data"))


def _digests(volatile: dict[str, tuple[str, ...]]) -> Callable[[pa.Array, pa.Array], pa.Array]:
    def digests(types: pa.Array, data: pa.Array) -> pa.Array:
        pairs = zip(types.to_pylist(), data.to_pylist(), strict=True)
        return pa.array([digest(text, volatile.get(type_, ())) for type_, text in pairs])

    return digests
