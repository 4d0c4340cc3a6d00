"""Keys and entities that the component's own code makes, computed by Spark's workers.

The server's query takes those that are fields (`spark_jobs.source.columns`). A key that is a
function of the command, or an id that is not the value in the data, needs the message itself,
decoded as the consumers decode it.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom
from pyspark.sql.pandas.functions import arrow_udf

from reservation.app_path import load_component
from reservation.component import Component
from reservation.declaration.table import declarations
from reservation.messages.message import StoredMessage
from reservation.messages.stream_name import category
from spark_jobs.common.declaration import Declaration

# The entity of a message where the component's own code cannot find it; no stream is named so.
ANY = ""

# A function on Spark's workers from the batches of one DataFrame to those of another.
Function = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

# Decoding does not depend on it.
_NO_TIME = datetime.min.replace(tzinfo=UTC)


@lru_cache
def loaded(app: str, app_dir: Path | None) -> Component:
    """Return a component on a worker."""
    return load_component(app, app_dir)


def stored(type_: str, version: str | None, data: str | None, stream: str = "") -> StoredMessage:
    """Return a message with all that its decoding depends on."""
    metadata = None if version is None else f'{{"schemaVersion": {version}}}'
    return StoredMessage("", stream, type_, 0, 0, data, metadata, _NO_TIME)


def with_function_keys(
    commands: DataFrame, declaration: Declaration, app: str, app_dir: Path | None
) -> DataFrame:
    """Fill in the keys that are functions, and drop the data that they were computed from."""
    if not declaration.by_function:
        return commands
    made = _of_commands(function_key, app, app_dir)
    return commands.withColumn(
        "key_stream", F.when(F.col("function_data").isNull(), F.col("key_stream")).otherwise(made)
    ).drop("function_data")


def former_streams(app: str, app_dir: Path | None) -> Column:
    """Return the streams that the keys of commands with function data named before."""
    return _of_commands(_former_stream, app, app_dir)


def _of_commands(
    stream_of: Callable[[Component, StoredMessage], str | None], app: str, app_dir: Path | None
) -> Column:
    """Return what a function gives for each command that has function data."""

    def made(
        component: Component, type_: str, version: str | None, stream: str, data: str
    ) -> str | None:
        return stream_of(component, stored(type_, version, data, stream))

    return _of_code(made, app, app_dir, "type", "version", "stream_name", "function_data")


def _of_code(
    function: Callable[..., str | None], app: str, app_dir: Path | None, *columns: str
) -> Column:
    """Return what a function gives for the component and each row; null where the last is null."""

    def made(*arrays: pa.Array) -> pa.Array:
        component = loaded(app, app_dir)
        rows = zip(*(array.to_pylist() for array in arrays), strict=True)
        found = (None if row[-1] is None else function(component, *row) for row in rows)
        return pa.array(found, pa.string())

    # The stub asks for the kind of function, which Spark infers.
    of_columns = arrow_udf(made, "string")  # type: ignore[call-overload]
    return of_columns(*columns)  # type: ignore[no-any-return]


def _former_stream(component: Component, message: StoredMessage) -> str | None:
    declared = declarations(component)
    try:
        reservation = declared.own[message.type].reservation
        command = declared.types.decode(message)
        return None if reservation is None else reservation.former_stream(command)
    except Exception:  # noqa: BLE001  an error of the user's key function is a finding
        return None


def function_key(component: Component, message: StoredMessage) -> str | None:
    """Return the stream that a command's key names; None without a usable key.

    For a reservation it is the stream that it is in, or would be in if it were made now.
    """
    declared = declarations(component)
    stream = message.stream_name
    try:
        command = declared.types.decode(message)
        reservation = declared.own[message.type].reservation
        if reservation is not None:
            is_reservation = category(stream) == reservation.into
            if is_reservation and reservation.former_stream(command) != stream:
                return stream
            return reservation.stream_name(command)
        return component.entity_stream(command)
    except Exception:  # noqa: BLE001  an error of the user's key function is a finding
        return None


def keys(
    app: str,
    app_dir: Path | None,
    categories: pa.Array,
    data: pa.Array,
    types: pa.Array,
    versions: pa.Array,
    streams: pa.Array,
) -> pa.Array:
    """Return the texts of which the keys of facts are hashes, where only code makes them.

    They are null without a usable key, and where there are no data.
    """
    component = loaded(app, app_dir)
    declared, renamed = declarations(component), Declaration.of(component).renamed

    def key(pair: str, text: str, type_: str, version: str | None, stream: str) -> str | None:
        of_copy = category(stream)
        is_copy = of_copy != declared.command_category
        named = stream if is_copy else None
        if not is_copy or type_ in renamed:
            named = function_key(component, stored(type_, version, text, stream)) or named
        return None if named is None else f"{of_copy if is_copy else pair}\n{named}"

    columns = (column.to_pylist() for column in (categories, data, types, versions, streams))
    rows = zip(*columns, strict=True)
    return pa.array([None if row[1] is None else key(*row) for row in rows], pa.string())


def entity_streams(app: str, app_dir: Path | None) -> Column:
    """Return the streams of messages' entities, where only code can find them.

    The stream is null where the column ``entity_data`` is, and `ANY` where the code of today cannot
    tell it.
    """
    return _of_code(_entity_stream, app, app_dir, "category", "type", "version", "entity_data")


def _entity_stream(
    component: Component, category_: str, type_: str, version: str | None, data: str
) -> str:
    declared = declarations(component).of(category_)
    try:
        return declared.entity_stream(declared.types.decode(stored(type_, version, data)))
    except Exception:  # noqa: BLE001  it may have been handled by other code than today's
        return ANY


def reserved_key(declaration: Declaration) -> Column:
    """Return the stream that a reservation is in, or would be in if it were made now.

    The rows must have their keys already.
    """
    is_renamed = F.col("type").isin(declaration.renamed)
    return F.coalesce(F.when(is_renamed, F.col("key_stream")), F.col("stream_name"))
