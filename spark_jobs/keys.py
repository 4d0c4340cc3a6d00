"""Keys that the component's own code makes, computed by Spark's workers.

A key that fields name is taken in the server's query (`spark_jobs.columns`); one that is a function
of the command takes the command itself, decoded as the consumers decode it.
"""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom
from pyspark.sql.pandas.functions import arrow_udf

from reservation import codec
from reservation.app_path import load_component
from reservation.component import Component
from spark_jobs.declaration import Declaration


@lru_cache
def _component(app: str, app_dir: Path | None) -> Component:
    return load_component(app, app_dir)


def with_function_keys(
    commands: DataFrame, declaration: Declaration, app: str, app_dir: Path | None
) -> DataFrame:
    """Fill in the keys that are functions, and leave out the data that they were made of.

    Args:
        commands: with the columns ``type``, ``stream_name``, ``key_stream`` and, where there are
            keys that are functions, ``function_data``.
        declaration: how keys are made.
        app, app_dir: the app path by which a worker finds the component, and its folder; None where
            its modules were sent to the workers.
    """
    if not declaration.by_function:
        return commands
    # The stub asks for the kind of function, which Spark infers.
    function_key = arrow_udf(_function_keys(app, app_dir), "string")  # type: ignore[call-overload]
    made = function_key("type", "stream_name", "function_data")
    return commands.withColumn(
        "key_stream", F.when(F.col("function_data").isNull(), F.col("key_stream")).otherwise(made)
    ).drop("function_data")


def _function_keys(
    app: str, app_dir: Path | None
) -> Callable[[pa.Array, pa.Array, pa.Array], pa.Array]:
    def keys(types: pa.Array, streams: pa.Array, data: pa.Array) -> pa.Array:
        component = _component(app, app_dir)
        return pa.array(
            [
                None if text is None else function_key(component, type_, stream, text)
                for type_, stream, text in zip(
                    types.to_pylist(), streams.to_pylist(), data.to_pylist(), strict=True
                )
            ],
            pa.string(),
        )

    return keys


def function_key(component: Component, type_: str, sent_to: str, data: str) -> str | None:
    """Return the stream that a command's key names; None where it has no usable key."""
    try:
        command: object = codec.decode(component.types[type_], data)
        if type_ in component.reservations:
            return component.reservations[type_].stream_name(command, sent_to)
        return component.entity_stream(command)
    except Exception:  # noqa: BLE001  the key function is the user's, and its failure is a finding
        return None
