"""Pairs of messages that differ as they are stored, compared by what they mean today.

Messages that differ as stored may still mean the same: one was sent under a former name, in a
former shape, or without a field that has a default. Only the messages of such pairs are read with
their data, and are compared by the component's code on Spark's workers, as consumers do it. What
cannot be decoded stays different. If the letter of a command was given other data, a command that
means the same as either content is a reissue of it.

For messages that differ, the names of the fields are returned, and the values if asked for.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom
from pyspark.sql.pandas.functions import arrow_udf

from reservation.component import Component
from reservation.declaration.table import declarations
from reservation.messages.comparison import differing_fields
from reservation.messages.message import StoredMessage
from reservation.serialization import codec
from reservation.serialization.fields import keys_of
from spark_jobs.common.result import LONGEST_VALUE, Difference
from spark_jobs.facts.keys import loaded, stored

# A message, and the one that it is compared with.
PAIR = ("global_position", "compared_with")

# Reads, at the positions in the column ``global_position`` of a DataFrame, of the messages of some
# categories, some columns.
Lookup = Callable[[DataFrame, Sequence[str], Sequence[str]], DataFrame]

# The differences of a pair, in Spark's SQL.
DIFFERENCES = "array<struct<what: string, field: string, command: string, first: string>>"
_DIFFERENCES = pa.list_(pa.struct([(field.name, pa.string()) for field in fields(Difference)]))

_UNREADABLE = Difference("unreadable", None, None, None)

# What the decoding of a message depends on.
_DECODED = ("type", "version", "data")


@dataclass(frozen=True, slots=True)
class Meanings:
    """Compares messages of a component by what they mean.

    Attributes:
        commands: the category of the commands.
        copies: the categories of their copies.
        app, app_dir: the app path by which Spark's workers find the component, and its folder; None
            where its modules were sent to them.
        values: whether to report the values of fields that differ, not only their names.
    """

    commands: str
    copies: Sequence[str]
    app: str
    app_dir: Path | None
    values: bool = False

    def compared(self, pairs: DataFrame, lookup: Lookup, given: Mapping[int, str]) -> DataFrame:
        """Return pairs with their ``differences``; those that mean the same have none."""
        both = F.explode(F.array(*PAIR)).alias("global_position")
        positions = pairs.select(both).distinct()
        messages = lookup(
            positions,
            [self.commands, *self.copies],
            ["category", "global_position", "causation", *_DECODED],
        )
        messages = self._with_contents(messages, lookup, given)
        columns = [*_DECODED, "contents"]
        for name, role in zip(PAIR, ("command", "first"), strict=True):
            message = messages.select(
                F.col("global_position").alias(name), F.struct(*columns).alias(role)
            )
            pairs = pairs.join(message, name, "left")
        values = [F.col(f"{role}.{name}") for role in ("command", "first") for name in columns]
        function = _compared(self.app, self.app_dir, values=self.values)
        # The stub asks for the kind of function, which Spark infers.
        compare = arrow_udf(function, DIFFERENCES)  # type: ignore[call-overload]
        return pairs.select(*PAIR, compare(*values).alias("differences"))

    def _with_contents(
        self, messages: DataFrame, lookup: Lookup, given: Mapping[int, str]
    ) -> DataFrame:
        """Add ``contents``: the data of a corrected message or command, before and after."""
        if not given:
            return messages.withColumn("contents", F.lit(None).cast("array<string>"))
        table = pa.table({"corrected": [*given], "given": [*given.values()]})
        corrected = messages.sparkSession.createDataFrame(table)
        sent = lookup(
            corrected.select(F.col("corrected").alias("global_position")),
            [self.commands, *self.copies],
            ["global_position", "data"],
        ).toDF("corrected", "sent")
        is_copy = F.col("category").isin(*self.copies)
        either = F.array("global_position", F.when(is_copy, F.col("causation")))
        of_messages = (
            messages.select("global_position", F.explode(either).alias("corrected"))
            .join(corrected, "corrected")
            .join(sent, "corrected")
            .groupBy("global_position")
            .agg(F.flatten(F.collect_list(F.array("sent", "given"))).alias("contents"))
        )
        return messages.join(of_messages, "global_position", "left")


def _compared(app: str, app_dir: Path | None, *, values: bool) -> Callable[..., pa.Array]:
    def compared(*columns: pa.Array) -> pa.Array:
        half = len(columns) // 2
        commands, firsts = (
            zip(*(column.to_pylist() for column in part), strict=True)
            for part in (columns[:half], columns[half:])
        )
        component = loaded(app, app_dir)
        nearest = (
            min(
                (
                    differences(component, *pair, values=values)
                    for pair in product(_contents(*command), _contents(*first))
                ),
                key=_distance,
                default=[_UNREADABLE],
            )
            for command, first in zip(commands, firsts, strict=True)
        )
        return pa.array([[*map(asdict, of_pair)] for of_pair in nearest], _DIFFERENCES)

    return compared


def _contents(
    type_: str | None, version: str | None, data: str | None, contents: Sequence[str | None] | None
) -> Iterator[StoredMessage]:
    """Give a message as it is stored, and as it was sent and handled where it was corrected.

    Without data, or where it was not found, nothing can be decoded.
    """
    if type_ is None:
        return
    for content in (data, *(contents or ())):
        if content is not None:
            yield stored(type_, version, content)


def differences(
    component: Component, command: StoredMessage, first: StoredMessage, *, values: bool
) -> list[Difference]:
    """Return how a command differs from the first of its key, as the consumers read both."""
    declared = declarations(component)
    other_type = [Difference("type", None, command.type, first.type)]
    try:
        own = declared.own[command.type]
        if first.type not in own.names:
            return other_type
        one, other = declared.types.decode(command), declared.types.decode(first)
        if type(one) is not type(other):
            return other_type
        class_: Any = type(one)  # of any component
        keys = keys_of(class_)
        names = [keys[name] for name in differing_fields(one, other, own.ignoring)]
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001  a class can raise anything
        return [_UNREADABLE]
    left, right = (_values(one), _values(other)) if values else ({}, {})
    return [Difference("field", name, left.get(name), right.get(name)) for name in names]


def _distance(differences: Sequence[Difference]) -> tuple[bool, int]:
    """Order differences: what can be decoded comes before what cannot, fewer before more."""
    return _UNREADABLE in differences, len(differences)


def _values(message: object) -> dict[str, str]:
    """Return the values of a message's fields as JSON; none if it can be read and not written."""
    try:
        written = codec.encode(message)
    except Exception:  # noqa: BLE001  it may be too large, or hold what a class let in
        return {}
    read = msgspec.json.decode(written, type=dict[str, msgspec.Raw])
    return {name: _cut(bytes(value).decode()) for name, value in read.items()}


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"
