"""The Spark data source ``message_store``: a category of the store as a DataFrame.

    spark.read.format("message_store").option("category", "account:command")
         .option("snapshot", snapshot.id).option("app", "bank:account").load()

The category is read in ranges of global position, in parallel, all under one exported snapshot.
The database's address is taken from the environment of the worker, so no option, and with it no
plan, holds a secret.
"""

import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
from psycopg import Connection, IsolationLevel, sql
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from reservation.app_path import load_component
from reservation.queries import load_queries
from reservation.store.connection import connect

if TYPE_CHECKING:
    from reservation.component import Component

_QUERIES = load_queries("spark_jobs")

FETCH_SIZE = 10_000

SCHEMA = pa.schema(
    [
        ("global_position", pa.int64()),
        ("position", pa.int64()),
        ("stream_name", pa.string()),
        ("type", pa.string()),
        ("id", pa.string()),
        ("causation", pa.int64()),
        ("key_category", pa.string()),
        ("key_stream", pa.string()),
        ("is_copy", pa.bool_()),
        ("content", pa.string()),
    ]
)


@dataclass
class PositionRange(InputPartition):
    """The global positions from ``first`` to ``last``, both included."""

    first: int
    last: int


class MessageStoreSource(DataSource):
    """A category of the message store.

    Options:
        category: the category to read.
        snapshot: the id of an exported snapshot.
        partitions: into how many ranges to divide it.
        app, appDir: the component whose declaration says how keys are made; without it the
            columns ``key_category`` and ``key_stream`` are null.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name that the source is asked for by."""
        return "message_store"

    def schema(self) -> str:
        """Return the columns, in Spark's words."""
        types = {pa.int64(): "bigint", pa.string(): "string", pa.bool_(): "boolean"}
        return ", ".join(f"{field.name} {types[field.type]}" for field in SCHEMA)

    def reader(self, schema: StructType) -> "MessageStoreReader":
        """Return the reader of the category; the schema is always the source's own."""
        del schema
        return MessageStoreReader(
            category=self.options["category"],
            snapshot=self.options["snapshot"],
            partitions=int(self.options.get("partitions", "2")),
            app=self.options.get("app"),
            app_dir=self.options.get("appDir", "."),
        )


@dataclass
class MessageStoreReader(DataSourceReader):
    """Reads a category in ranges; Spark sends a copy of it to every worker."""

    category: str
    snapshot: str
    partitions_wanted: int
    app: str | None
    app_dir: str

    def __init__(
        self, category: str, snapshot: str, partitions: int, app: str | None, app_dir: str
    ) -> None:
        self.category = category
        self.snapshot = snapshot
        self.partitions_wanted = partitions
        self.app = app
        self.app_dir = app_dir

    def partitions(self) -> Sequence[InputPartition]:
        """Divide the category into ranges of global position."""
        with self._connection() as connection:
            first, last = connection.execute(
                _QUERIES["bounds"], {"category": self.category}
            ).fetchall()[0]
        if first is None:
            return [PositionRange(0, 0)]
        step = max(1, -(-(last - first + 1) // self.partitions_wanted))
        return [
            PositionRange(start, min(start + step - 1, last))
            for start in range(first, last + 1, step)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range, a few thousand rows at a time."""
        assert isinstance(partition, PositionRange)  # noqa: S101  Spark hands back what it was given
        component = load_component(self.app, self.app_dir) if self.app else None
        parameters = {
            "category": self.category,
            "first": partition.first,
            "last": partition.last,
            **_declared(component),
        }
        with (
            self._connection() as connection,
            connection.cursor(name="messages", binary=True) as cursor,
        ):
            cursor.execute(_QUERIES["messages"], parameters)
            names = [column.name for column in cursor.description or ()]
            while rows := cursor.fetchmany(FETCH_SIZE):
                columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
                if component is not None:
                    _add_function_keys(columns, component)
                yield pa.RecordBatch.from_pydict(
                    {name: columns[name] for name in SCHEMA.names}, schema=SCHEMA
                )

    def _connection(self) -> Connection[Any]:
        """Open a transaction that sees the snapshot."""
        connection = connect(
            os.environ.get("RESERVATION_DATABASE_URL", ""), application_name="reservation spark"
        )
        connection.isolation_level = IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        try:
            connection.execute(
                sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(self.snapshot))
            )
        except psycopg.Error:
            connection.close()
            raise
        return connection


def _declared(component: "Component | None") -> dict[str, list[Any]]:
    """Return what the component declares about keys, a list per column."""
    from reservation.codec import camel_case

    declared: dict[str, list[Any]] = {
        "types": [],
        "categories": [],
        "fields": [],
        "volatile": [],
        "by_function": [],
        "within": [],
    }
    if component is None:
        return declared
    for type_, reservation in component.reservations.items():
        leading = [] if reservation.entity is None else [reservation.entity]
        fields = [] if callable(reservation.key) else [*leading, *reservation.key]
        declared["types"].append(type_)
        declared["categories"].append(reservation.into or component.command_category)
        declared["within"].append(reservation.into is None)
        declared["fields"].append(json.dumps([camel_case(field) for field in fields]))
        declared["volatile"].append(json.dumps(component.volatile("reserve")[type_]))
        declared["by_function"].append(
            callable(reservation.key) or _has_default(reservation.command, fields)
        )
    for type_, initiation in component.initiations.items():
        declared["types"].append(type_)
        declared["categories"].append(component.name)
        declared["within"].append(False)
        declared["fields"].append(json.dumps([camel_case(component.id)]))
        declared["volatile"].append(json.dumps(component.volatile("initiate")[type_]))
        declared["by_function"].append(_has_default(initiation.command, [component.id]))
    return declared


def _has_default(command: type, fields: Sequence[str]) -> bool:
    """Tell whether the data may leave one of these fields out, and the class then fill it in."""
    missing = dataclasses.MISSING
    return any(
        field.name in fields and (field.default, field.default_factory) != (missing, missing)
        for field in dataclasses.fields(command)
    )


def _add_function_keys(columns: dict[str, list[Any]], component: "Component") -> None:
    """Compute the keys that are a function of the command, with the component's own code."""
    for n, data in enumerate(columns["function_data"]):
        if data is not None:
            type_, sent_to = columns["type"][n], columns["stream_name"][n]
            columns["key_stream"][n] = _function_key(component, type_, sent_to, data)


def _function_key(component: "Component", type_: str, sent_to: str, data: str) -> str | None:
    """Return the stream that a command's key names; None where it has no usable key."""
    from reservation import codec

    try:
        command: object = codec.decode(component.types[type_], data)
        if type_ in component.reservations:
            return component.reservations[type_].stream_name(command, sent_to)
        return component.entity_stream(command)
    except Exception:  # noqa: BLE001  the key function is the user's, and its failure is a finding
        return None
