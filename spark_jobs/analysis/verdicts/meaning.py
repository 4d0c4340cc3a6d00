"""Pairs of messages that differ as they are stored, compared by what they mean today.

What a job finds to be different may still be the same: it was sent under a former name, in a former
shape, or without a field that has a default. The messages of such pairs are read with their data,
which nothing else is, and compared on Spark's workers by the code of the component, as the
consumers do it. What cannot be decoded, or read any more, stays different.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom
from pyspark.sql.pandas.functions import arrow_udf

from reservation.component import Component
from reservation.messages.comparison import same_meaning
from reservation.messages.message import StoredMessage
from spark_jobs.analysis.keys import loaded, stored
from spark_jobs.analysis.verdicts.judging import PAIR, Counts, Lookup

# What the decoding of a message depends on.
_DECODED = ("type", "version", "data")


@dataclass(frozen=True, slots=True)
class Meanings:
    """Compares messages of a component by what they mean; a `judging.Comparison`.

    Attributes:
        categories: the categories that they are in.
        app, app_dir: the app path by which Spark's workers find the component, and its folder; None
            where its modules were sent to them.
    """

    categories: Sequence[str]
    app: str
    app_dir: Path | None

    def is_needed(self, counts: Counts) -> bool:
        """Return whether anything was found to be different."""
        return any(count for name, count in counts.items() if name.endswith(" conflicts"))

    def compared(self, pairs: DataFrame, lookup: Lookup) -> DataFrame:
        """Return pairs with ``same``, whether both mean the same.

        Args:
            pairs: with the columns of `PAIR`.
            lookup: gives what reads some of the messages.
        """
        both = F.explode(F.array(*PAIR)).alias("global_position")
        found = lookup(pairs.select(both).distinct())(
            self.categories, ["global_position", *_DECODED]
        )
        for name, role in zip(PAIR, ("command", "first"), strict=True):
            message = found.select(
                F.col("global_position").alias(name), F.struct(*_DECODED).alias(role)
            )
            pairs = pairs.join(message, name, "left")
        # The stub asks for the kind of function, which Spark infers.
        same = arrow_udf(_same(self.app, self.app_dir), "boolean")  # type: ignore[call-overload]
        values = [f"{role}.{name}" for role in ("command", "first") for name in _DECODED]
        return pairs.select(*PAIR, same(*values).alias("same"))


def _same(app: str, app_dir: Path | None) -> Callable[..., pa.Array]:
    def same(*columns: pa.Array) -> pa.Array:
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        return pa.array(
            [
                # Without data, nothing can be decoded.
                None not in (data, first_data)
                and means_same(
                    loaded(app, app_dir),
                    stored(type_, version, data),
                    stored(first_type, first_version, first_data),
                )
                for type_, version, data, first_type, first_version, first_data in rows
            ],
            pa.bool_(),
        )

    return same


def means_same(component: Component, command: StoredMessage, first: StoredMessage) -> bool:
    """Return whether a command means the same as the first one of its key.

    Args:
        component: whose commands they are.
        command: the command.
        first: what was there first.
    """
    try:
        return same_meaning(component, command, first, component.types.decode)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001  a class can raise anything
        return False
