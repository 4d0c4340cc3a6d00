"""Pairs of messages that differ as they are stored, compared by what they mean today.

What a job finds to be different may still be the same: it was sent under a former name, in a former
shape, or without a field that has a default. The messages of such pairs are read with their data,
which nothing else is, and compared by the code of the component on Spark's workers, as the
consumers do it. What cannot be decoded stays different. Where the letter of a command was given
other data, what means the same as one of its two contents is a reissue of it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom
from pyspark.sql.pandas.functions import arrow_udf

from reservation.component import Component
from reservation.declaration.table import declarations
from reservation.messages.comparison import same_meaning
from reservation.messages.message import StoredMessage
from spark_jobs.facts.keys import loaded, stored

# A message, and the one that it is compared with.
PAIR = ("global_position", "compared_with")

# Reads columns of the messages of some categories, at the positions in the column
# ``global_position`` of a DataFrame.
Lookup = Callable[[DataFrame], Callable[[Sequence[str], Sequence[str]], DataFrame]]

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
    """

    commands: str
    copies: Sequence[str]
    app: str
    app_dir: Path | None

    def compared(self, pairs: DataFrame, lookup: Lookup, given: Mapping[int, str]) -> DataFrame:
        """Return pairs with ``same``, whether both mean the same."""
        both = F.explode(F.array(*PAIR)).alias("global_position")
        positions = pairs.select(both).distinct()
        found = lookup(positions)(
            [self.commands, *self.copies],
            ["category", "global_position", "causation", *_DECODED],
        )
        found = self._with_contents(found, lookup, given)
        columns = [*_DECODED, "contents"]
        for name, role in zip(PAIR, ("command", "first"), strict=True):
            message = found.select(
                F.col("global_position").alias(name), F.struct(*columns).alias(role)
            )
            pairs = pairs.join(message, name, "left")
        values = [F.col(f"{role}.{name}") for role in ("command", "first") for name in columns]
        function = _same(self.app, self.app_dir)
        # The stub asks for the kind of function, which Spark infers.
        compare = arrow_udf(function, "boolean")  # type: ignore[call-overload]
        return pairs.select(*PAIR, compare(*values).alias("same"))

    def _with_contents(
        self, messages: DataFrame, lookup: Lookup, given: Mapping[int, str]
    ) -> DataFrame:
        """Add ``contents``: the data that a message, or its command, was sent with and given."""
        if not given:
            return messages.withColumn("contents", F.lit(None).cast("array<string>"))
        table = pa.table({"corrected": [*given], "given": [*given.values()]})
        corrected = messages.sparkSession.createDataFrame(table)
        read = lookup(corrected.select(F.col("corrected").alias("global_position")))
        sent = read([self.commands, *self.copies], ["global_position", "data"]).select(
            F.col("global_position").alias("corrected"), F.col("data").alias("sent")
        )
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


def _same(app: str, app_dir: Path | None) -> Callable[..., pa.Array]:
    def same(*columns: pa.Array) -> pa.Array:
        half = len(columns) // 2
        commands, firsts = (
            zip(*(column.to_pylist() for column in part), strict=True)
            for part in (columns[:half], columns[half:])
        )
        return pa.array(
            [
                any(
                    means_same(loaded(app, app_dir), one, other)
                    for one, other in product(_contents(*command), _contents(*first))
                )
                for command, first in zip(commands, firsts, strict=True)
            ],
            pa.bool_(),
        )

    return same


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


def means_same(component: Component, command: StoredMessage, first: StoredMessage) -> bool:
    """Return whether a command means the same as the first one of its key."""
    declared = declarations(component)
    try:
        one, decode = (
            declared.own[command.type],
            declared.types.decode,
        )
        return same_meaning(one.names, one.ignoring, command, first, decode)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001  a class can raise anything
        return False
