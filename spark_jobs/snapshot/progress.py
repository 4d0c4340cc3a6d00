"""How far consumers are, which distinguishes lost messages from unread ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from spark_jobs.snapshot import partitions
from spark_jobs.snapshot.meaning import Corrected, with_meaning


@dataclass(frozen=True, slots=True)
class Consumed:
    """How far the consumer of a category is.

    Attributes:
        position: the global position up to which it has handled everything; None if unknown.
        before: without a position, messages stored before this time count as read, in UTC.
        letters: the global positions of the messages that it passed without handling them.
        partitions: the position of each partition, in order; empty if there is only one.
        carried: the positions of former partitions, while they still decide what was read.
        conflicts: the global positions of the messages that it recorded as conflicts.
        first_position: the position at which it first began; it records conflicts above it. None
            if that is unknown, or it records none.
        corrections: the messages that were corrected.
        given: the data that their letters were given, by their global positions.
    """

    position: int | None
    before: datetime | None = None
    letters: Sequence[int] = ()
    partitions: Sequence[int] = ()
    carried: Sequence[int] = ()
    conflicts: Sequence[int] = ()
    first_position: int | None = None
    corrections: Sequence[Corrected] = ()
    given: Mapping[int, str] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of_partitions(
        cls,
        positions: Sequence[int],
        carried: Sequence[int] = (),
        *,
        letters: Sequence[int] = (),
        conflicts: Sequence[int] = (),
        first_position: int | None = None,
        corrections: Mapping[Corrected, str] | None = None,
    ) -> "Consumed":
        """Return how far a consumer is whose partitions have separate positions."""
        lowest = min(positions)
        in_force = tuple(carried) if max(carried, default=0) > lowest else ()
        return cls(
            lowest,
            letters=letters,
            partitions=tuple(positions),
            carried=in_force,
            conflicts=conflicts,
            first_position=first_position,
            corrections=list(corrections or ()),
            given={one.global_position: data for one, data in (corrections or {}).items()},
        )

    @property
    def highest(self) -> int:
        """The global position above which nothing was read, where positions are known."""
        return max((self.position or 0, *self.partitions, *self.carried))

    def reaches(self, other: "Consumed") -> bool:
        """Return whether everything that the other has read was certainly read."""
        if self.before is not None and other.before is not None:
            return self.before >= other.before
        if self.position is None or other.position is None:
            return False
        if self.position >= other.highest:
            return True
        if (len(self.partitions), self.carried) != (len(other.partitions), other.carried):
            return False
        pairs = zip(self.partitions, other.partitions, strict=True)
        return self.position >= other.position and all(mine >= theirs for mine, theirs in pairs)

    def has_read(self, hashed: Column) -> Column:
        """Return whether a message was read, of rows with ``global_position`` and ``time``."""
        at = F.col("global_position")
        if self.position is None:
            return F.col("time") < F.lit(self.before)
        if self.highest == self.position:
            return at <= self.position
        passed = F.lit(False)
        for positions in (self.partitions, self.carried):
            if positions:
                passed |= at <= partitions.position(hashed, positions)
        return F.when(at.between(self.position + 1, self.highest), passed).otherwise(
            at <= self.position
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the consumers of several categories are, by the category's name."""

    consumed: Mapping[str, Consumed] = field(default_factory=dict)

    @property
    def corrections(self) -> list[Corrected]:
        """The messages that were corrected."""
        return [one for consumed in self.consumed.values() for one in consumed.corrections]

    @property
    def given(self) -> dict[int, str]:
        """The data that letters of theirs were given, by global position."""
        return {
            at: one for consumed in self.consumed.values() for at, one in consumed.given.items()
        }

    def uneven(self, category: str) -> tuple[int, int] | None:
        """Return the range of global positions in which the partition decides what was read."""
        one = self.consumed.get(category)
        if one is None or one.position is None or one.highest == one.position:
            return None
        return one.position + 1, one.highest

    def marked(self, messages: DataFrame) -> DataFrame:
        """Add what the consumers did to messages, which have category, global position and time.

        Added are ``was_read``, ``is_letter``, ``is_recorded`` (as a conflict), ``is_corrected`` and
        ``is_watched`` (a conflict would have been recorded). Of a category without a known
        consumer, nothing was read.
        """
        notes: dict[tuple[str, int], dict[str, object]] = {}
        hashed = partitions.hashed(F.col("stream_name"))
        nothing = dict.fromkeys(("is_letter", "is_recorded", "is_corrected"), False)
        was_read = is_watched = F.lit(False)
        for category, consumed in self.consumed.items():
            is_here = F.col("category") == F.lit(category)
            was_read = F.when(is_here, consumed.has_read(hashed)).otherwise(was_read)
            if consumed.first_position is not None:
                is_watched |= is_here & (F.col("global_position") > consumed.first_position)
            corrected = [one.global_position for one in consumed.corrections]
            for note, of_kind in (
                ("is_letter", consumed.letters),
                ("is_recorded", consumed.conflicts),
                ("is_corrected", corrected),
            ):
                for at in of_kind:
                    place = {"category": category, "global_position": at}
                    notes.setdefault((category, at), {**place, **nothing})[note] = True
        marked = messages.withColumns({"was_read": was_read, "is_watched": is_watched})
        if "content" in messages.columns:
            marked = with_meaning(marked, self.corrections)
        if not notes:
            return marked.withColumns(dict.fromkeys(nothing, F.lit(False)))
        rows = [*notes.values()]
        found = F.broadcast(messages.sparkSession.createDataFrame(pa.Table.from_pylist(rows)))
        noted = {name: F.coalesce(name, F.lit(False)) for name in nothing}
        return marked.join(found, ["category", "global_position"], "left").withColumns(noted)
