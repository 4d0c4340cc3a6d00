"""Reserved commands held against the events that follow them: did each take effect, and once?

An event names what it follows, its cause. A cause and all that follow it are judged together. The
ids of the events that this framework writes are derived from their cause, and the store admits each
id once; so an effect that was brought about twice shows as events of one type in one stream, that
follow one cause and have other ids.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from reservation.component import Component
from reservation.idempotence.processed import Processed
from reservation.idempotence.pseudo_event import PSEUDO_EVENT
from reservation.idempotence.revision import Revisions
from spark_jobs.declaration import Declaration
from spark_jobs.judging import Counts, Read
from spark_jobs.progress import Progress
from spark_jobs.result import Effects as OfCategory
from spark_jobs.result import Events

_MESSAGE = ("category", "global_position", "position", "stream_name", "type", "id", "time")
_VERDICTS = ("handled", "silent", "pending", "unhandled", "dead")
_OPEN = ("pending", "unhandled", "dead", "without-cause")


@dataclass(frozen=True, slots=True)
class Effects:
    """The job, for one component."""

    component: Component

    name = "effects"

    @property
    def categories(self) -> list[str]:
        """The categories that reserved commands are in, each once."""
        component = self.component
        within = [component.command_category] if component.reserves_within else []
        return [*component.reservation_categories, *within]

    def rows(self, read: Read) -> DataFrame:
        """Return causes and events, grouped by the global position of the cause."""
        component = self.component
        category, is_event = F.col("category"), F.col("category") == component.name
        is_copy = F.col("is_copy") & (category == component.command_category)
        for type_, key in Declaration.of(component).keys.items():
            if not key.within and type_ in component.reservations:
                is_copy |= (category == key.category) & (F.col("type") == type_)
        messages = read(
            [component.command_category, *component.reservation_categories, component.name],
            [*_MESSAGE, "causation", "is_copy"],
        )
        # No message has the number of one that follows nothing, less than 0.
        followed = F.coalesce("causation", -F.col("global_position"))
        return messages.select(
            F.when(is_event, followed).otherwise(F.col("global_position")).alias("group"),
            (~is_event).alias("is_cause"),
            is_copy.alias("is_copy"),
            *_MESSAGE,
        )

    @property
    def silent_types(self) -> list[str]:
        """The types of commands whose handling may leave nothing in the log."""
        component = self.component
        silent = [
            type_
            for type_, once in component.strategies.items()
            if isinstance(once, (Processed, Revisions))
        ]
        return sorted([*silent, *component.state_based])

    def judge(self, rows: DataFrame, progress: Progress) -> DataFrame:
        """Give every reserved command its verdict, and every event that should not be there."""
        return judge(rows, progress, self.silent_types)

    def counts(self) -> Mapping[str, Column]:
        """Return the counts of each category, under its number and the count's name."""
        counts = {
            f"{n} {name}": F.count(F.when((F.col("category") == category) & condition, 1))
            for n, category in enumerate(self.categories)
            for name, condition in (
                ("reserved", F.col("is_copy")),
                *((verdict, F.col("verdict") == verdict) for verdict in _VERDICTS),
            )
        }
        is_event = ~F.col("is_cause") & (F.col("type") != PSEUDO_EVENT)
        return {
            **counts,
            "events": F.count(F.when(is_event, 1)),
            "causes": F.count(F.when(F.col("is_cause") & F.col("is_followed"), 1)),
            "effect_twice": F.count(F.when(F.col("is_first_again"), 1)),
            "without_cause": F.count(F.when(F.col("verdict") == "without-cause", 1)),
        }

    def results(self, counts: Counts) -> tuple[list[OfCategory], Events]:
        """Return what was counted, for each category of reserved commands, and of the events."""
        of_categories = [
            OfCategory(
                category,
                **{name: counts[f"{n} {name}"] for name in ("reserved", *_VERDICTS)},
            )
            for n, category in enumerate(self.categories)
        ]
        return of_categories, Events(
            self.component.name,
            **{
                name: counts[name] for name in ("events", "causes", "effect_twice", "without_cause")
            },
        )


def judge(rows: DataFrame, progress: Progress, silent_types: list[str]) -> DataFrame:
    """Give every reserved command its verdict, and every event that should not be there.

    Args:
        rows: with the columns that `Effects.rows` gives.
        progress: how far the consumers are, and their dead letters.
        silent_types: the types of commands whose handling may leave nothing in the log.

    Returns:
        The rows with ``verdict`` (for a reserved command handled, silent, pending, unhandled or
        dead; for an event effect-twice, without-cause or null) and the columns of a finding.
    """
    is_cause = F.col("is_cause")
    order = [~is_cause, F.col("stream_name"), F.col("type"), F.col("position")]
    in_order = Window.partitionBy("group").orderBy(*order)
    whole = in_order.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)

    grouped = (
        progress.marked(rows)
        .withColumn("has_cause", F.max(is_cause).over(whole))
        .withColumn("followers", F.sum(F.when(is_cause, 0).otherwise(1)).over(whole))
        .withColumn("cause_id", F.first("id").over(whole))
        .withColumn("cause_stream", F.first("stream_name").over(whole))
        .withColumn("cause_category", F.first("category").over(whole))
        .withColumn("id_before", F.lag("id").over(in_order))
        .withColumn(
            "is_again",
            ~is_cause
            & (F.lag("is_cause").over(in_order) == F.lit(False))
            & (F.lag("stream_name").over(in_order) == F.col("stream_name"))
            & (F.lag("type").over(in_order) == F.col("type")),
        )
    )
    again = (
        F.col("has_cause")
        & F.coalesce("is_again", F.lit(False))
        & (F.col("type") != PSEUDO_EVENT)
        & ~(_is_derived("id") & _is_derived("id_before"))
    )
    marked = grouped.withColumn("is_twice", again).withColumn(
        "nth_twice", F.sum(F.when(F.col("is_twice"), 1).otherwise(0)).over(so_far)
    )
    is_followed = F.col("followers") > 0
    is_silent = F.col("type").isin(*silent_types) if silent_types else F.lit(False)
    verdict = (
        F.when(F.col("is_copy") & is_followed, "handled")
        .when(F.col("is_copy") & F.col("is_letter"), "dead")
        .when(F.col("is_copy") & ~F.col("was_read"), "pending")
        .when(F.col("is_copy") & is_silent, "silent")
        .when(F.col("is_copy"), "unhandled")
        .when(~is_cause & (F.col("type") == PSEUDO_EVENT), F.lit(None))
        .when(~is_cause & ~F.col("has_cause"), "without-cause")
        .when(F.col("is_twice"), "effect-twice")
    )
    return marked.withColumn("verdict", verdict).select(
        "group",
        "category",
        "is_cause",
        "is_copy",
        "verdict",
        is_followed.alias("is_followed"),
        (F.col("is_twice") & (F.col("nth_twice") == 1)).alias("is_first_again"),
        F.when(
            F.col("verdict").isin("unhandled", "effect-twice", "without-cause"), F.col("verdict")
        ).alias("finding"),
        F.when(F.col("has_cause"), F.col("cause_category")).alias("command_category"),
        F.col("category").alias("reservation_category"),
        F.when(F.col("has_cause"), F.col("cause_stream")).alias("key_stream"),
        "stream_name",
        "position",
        "global_position",
        "type",
        F.col("id").alias("message_id"),
        "time",
        F.coalesce(F.col("verdict").isin(*_OPEN), F.lit(False)).alias("is_open"),
    )


def _is_derived(id_: str) -> Column:
    """Return whether the id of an event is one that the framework derives from its cause.

    That is `reservation.message.followed_id`: a UUID of version 5 in the namespace of the cause.
    """
    namespace = F.unhex(F.regexp_replace("cause_id", "-", ""))

    def derived(ordinal: Column) -> Column:
        name = F.encode(F.concat("stream_name", F.lit(" "), ordinal.cast("string")), "UTF-8")
        digest = F.sha1(F.concat(namespace, name))
        variant = F.conv(F.substring(digest, 17, 1), 16, 10).cast("int").bitwiseAND(3).bitwiseOR(8)
        return F.concat(
            F.substring(digest, 1, 8),
            F.lit("-"),
            F.substring(digest, 9, 4),
            F.lit("-5"),
            F.substring(digest, 14, 3),
            F.lit("-"),
            F.lower(F.hex(variant)),
            F.substring(digest, 18, 3),
            F.lit("-"),
            F.substring(digest, 21, 12),
        )

    ordinals = F.sequence(F.lit(0), F.col("followers").cast("int") - 1)
    same = F.exists(ordinals, lambda n: derived(n) == F.col(id_))
    return F.coalesce(same, F.lit(False))  # of what is no UUID nothing is derived
