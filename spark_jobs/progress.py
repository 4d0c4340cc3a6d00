"""How far consumers are, which tells what is lost from what is still to come."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True, slots=True)
class Consumed:
    """How far the consumer of a category is.

    Attributes:
        position: the global position up to which it has dealt with everything; None where that is
            not known, and then
        before: whatever was stored before this moment counts as read, in UTC.
        letters: the global positions of the messages that it passed without having dealt with them.
    """

    position: int | None
    before: datetime | None = None
    letters: Sequence[int] = ()

    def has_read(self) -> "Column":
        """Return whether a message was read, of rows with ``global_position`` and ``time``."""
        from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

        if self.position is not None:
            return F.col("global_position") <= self.position
        return F.col("time") < F.lit(self.before)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the consumers of several categories are, by the category's name."""

    consumed: Mapping[str, Consumed] = field(default_factory=dict)

    def marked(
        self,
        messages: "DataFrame",
        known_as: "Callable[[str], object]" = str,
        *,
        was: "Progress | None" = None,
    ) -> "DataFrame":
        """Add ``was_read`` and ``is_letter`` to messages with category, global position and time.

        Of a category that nothing is known of, nothing was read.

        Args:
            messages: the messages.
            known_as: gives what stands there for a category.
            was: how far the consumers were; for the messages that are ``is_past``, a column that
                they have if this is given.
        """
        import pyarrow as pa
        from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

        letters: list[dict[str, object]] = []

        def read(progress: Progress, **also: bool) -> "Column":
            was_read = F.lit(False)
            for category, consumed in progress.consumed.items():
                of = {"category": known_as(category), **also}
                is_here = F.col("category") == F.lit(of["category"])
                was_read = F.when(is_here, consumed.has_read()).otherwise(was_read)
                letters.extend({**of, "global_position": one} for one in consumed.letters)
            return was_read

        if was is None:
            was_read = read(self)
        else:
            past, now = read(was, is_past=True), read(self, is_past=False)
            was_read = F.when(F.col("is_past"), past).otherwise(now)
        marked = messages.withColumn("was_read", was_read)
        if not letters:
            return marked.withColumn("is_letter", F.lit(False))
        rows = messages.sparkSession.createDataFrame(pa.Table.from_pylist(letters))
        found = F.broadcast(rows.withColumn("found", F.lit(True)))
        joined = marked.join(found, list(letters[0]), "left")
        return joined.withColumn("is_letter", F.coalesce("found", F.lit(False))).drop("found")
