"""Keys that the component's own code makes, computed by Spark's workers.

The server's query computes keys that consist of fields (`spark_jobs.source.columns`). A key that is
a function of the command needs the command itself, decoded as the consumers decode it.
"""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom
from pyspark.sql.pandas.functions import arrow_udf

from reservation.app_path import load_component
from reservation.component import Component
from reservation.messages.stream_name import category
from reservation.serialization import codec
from spark_jobs.common.declaration import Declaration


@lru_cache
def _component(app: str, app_dir: Path | None) -> Component:
    return load_component(app, app_dir)


def with_function_keys(
    commands: DataFrame, declaration: Declaration, app: str, app_dir: Path | None
) -> DataFrame:
    """Fill in the keys that are functions, and drop the data that they were computed from.

    Args:
        commands: with the columns ``type``, ``stream_name``, ``key_stream``, ``is_copy`` and, where
            there are keys that are functions, ``function_data``, and where copies in the command
            category have had other keys, ``source``.
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
    made = function_key("type", "stream_name", "function_data", source)
    return commands.withColumn(
        "key_stream", F.when(F.col("function_data").isNull(), F.col("key_stream")).otherwise(made)
    ).drop("function_data", "source")


def _function_keys(
    app: str, app_dir: Path | None
) -> Callable[[pa.Array, pa.Array, pa.Array, pa.Array], pa.Array]:
    def keys(types: pa.Array, streams: pa.Array, data: pa.Array, sources: pa.Array) -> pa.Array:
        component = _component(app, app_dir)
        return pa.array(
            [
                None if text is None else function_key(component, type_, stream, text, source)
                for type_, stream, text, source in zip(
                    *(column.to_pylist() for column in (types, streams, data, sources)), strict=True
                )
            ],
            pa.string(),
        )

    return keys


def function_key(
    component: Component, type_: str, stream: str, data: str, source: str | None = None
) -> str | None:
    """Return the stream that a command's key names; None without a usable key.

    For a reservation it is the stream that it is in, or would be in if it were made now.

    Args:
        component: whose commands they are.
        type_: the message's type.
        stream: the stream that the command was sent to, or that of its reservation.
        data: the message's data.
        source: of a copy in the command category that may be under a former key, the stream of its
            command; else None.
    """
    try:
        command: object = codec.decode(component.types[type_], data)
        reservation = component.reservations.get(type_)
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
