"""Keys that the component's own code makes, computed by Spark's workers.

The server's query computes keys that consist of fields (`spark_jobs.source.columns`). A key that is
a function of the command needs the command itself, decoded as the consumers decode it.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom
from pyspark.sql.pandas.functions import arrow_udf

from reservation.app_path import load_component
from reservation.component import Component
from reservation.messages.message import StoredMessage
from reservation.messages.stream_name import category
from spark_jobs.common.declaration import Declaration

# Decoding does not depend on it.
_NO_TIME = datetime.min.replace(tzinfo=UTC)


@lru_cache
def loaded(app: str, app_dir: Path | None) -> Component:
    """Return a component on a worker.

    Args:
        app: the app path by which the worker finds it.
        app_dir: the folder of the app; None if its modules were sent to the workers.
    """
    return load_component(app, app_dir)


def stored(type_: str, version: str | None, data: str | None, stream: str = "") -> StoredMessage:
    """Return a message with all that its decoding depends on.

    Args:
        type_: its type.
        version: the version of its shape, as JSON; None if it has none.
        data: its data.
        stream: its stream.
    """
    metadata = None if version is None else f'{{"schemaVersion": {version}}}'
    return StoredMessage("", stream, type_, 0, 0, data, metadata, _NO_TIME)


def with_function_keys(
    commands: DataFrame, declaration: Declaration, app: str, app_dir: Path | None
) -> DataFrame:
    """Fill in the keys that are functions, and drop the data that they were computed from.

    Args:
        commands: with the columns ``type``, ``version``, ``stream_name``, ``key_stream``,
            ``is_copy`` and, where there are keys that are functions, ``function_data``, and where
            copies in the command category have had other keys, ``source``.
        declaration: how keys are made.
        app: the app path by which a worker finds the component.
        app_dir: the folder of the app; None if its modules were sent to the workers.
    """
    if not declaration.by_function:
        return commands
    # The stub asks for the kind of function, which Spark infers.
    function_key = arrow_udf(_function_keys(app, app_dir), "string")  # type: ignore[call-overload]
    # Of a copy, the stream of the command that it follows, which leads its name.
    source = F.lit(None).cast("string")
    if declaration.renamed_within:
        source = F.when(F.col("is_copy"), F.col("source"))
    made = function_key("type", "version", "stream_name", "function_data", source)
    return commands.withColumn(
        "key_stream", F.when(F.col("function_data").isNull(), F.col("key_stream")).otherwise(made)
    ).drop("function_data", "source")


def _function_keys(app: str, app_dir: Path | None) -> Callable[..., pa.Array]:
    def keys(*columns: pa.Array) -> pa.Array:
        component = loaded(app, app_dir)
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        return pa.array(
            [
                None
                if text is None
                else function_key(component, stored(type_, version, text, to), source)
                for type_, version, to, text, source in rows
            ],
            pa.string(),
        )

    return keys


def function_key(
    component: Component, message: StoredMessage, source: str | None = None
) -> str | None:
    """Return the stream that a command's key names; None without a usable key.

    For a reservation it is the stream that it is in, or would be in if it were made now.

    Args:
        component: whose commands they are.
        message: the command, in the stream that it was sent to, or its reservation.
        source: of a copy in the command category that may be under a former key, the stream of its
            command; else None.
    """
    stream = message.stream_name
    try:
        command = component.types.decode(message)
        reservation = component.reservations.get(message.type)
        if reservation is not None:
            if source is not None:
                return reservation.stream_name(command, source)
            is_reservation = category(stream) == reservation.into
            if is_reservation and reservation.former_stream(command) != stream:
                return stream
            return reservation.stream_name(command, stream)
        return component.entity_stream(command)
    except Exception:  # noqa: BLE001  an error of the user's key function is a finding
        return None


def reserved_key(declaration: Declaration) -> Column:
    """Return the stream that a reservation is in, or would be in if it were made now.

    The rows must have their keys already.
    """
    is_renamed = F.col("type").isin(declaration.renamed)
    return F.coalesce(F.when(is_renamed, F.col("key_stream")), F.col("stream_name"))
