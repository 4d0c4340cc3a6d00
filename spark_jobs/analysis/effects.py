"""Compare reserved commands with the events that follow them: did each take effect, and once?

An event names the message that it follows, its cause. A cause and its events are judged together.
This framework derives the ids of events from their cause, and the store accepts each id once. So an
effect that happened twice shows as several events of one type in one stream that follow one cause
and have other ids.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from reservation.component import Component
from spark_jobs.analysis.verdicts.fingerprints import Numbering
from spark_jobs.analysis.verdicts.judging import (
    Counts,
    Naming,
    PlainNames,
    Read,
    Rule,
    finding,
    finding_of,
    found,
    is_in_order,
    number_of,
    own_name,
    verdict_of,
)
from spark_jobs.common.declaration import Declaration, DeclaredKey
from spark_jobs.common.result import EffectCounts as OfCategory
from spark_jobs.common.result import Events
from spark_jobs.snapshot.progress import Progress

_MESSAGE = ("category", "global_position", "position", "stream_name", "type", "id", "time")
_VERDICTS = ("handled", "silent", "pending", "unhandled", "dead")

# What a group contains, as bits: a cause; one that was read; one that may lack an event; an event.
_CAUSE, _READ, _MAY_LACK, _FOLLOWED = 1, 2, 4, 8

_OPEN = ("pending", "unhandled", "dead", "without-cause")


@dataclass(frozen=True, slots=True)
class EffectsJob:
    """The job, for one component."""

    component: Component

    name = "effects"
    comparison = None

    @property
    def categories(self) -> list[str]:
        """The categories that reserved commands are in, each once."""
        component = self.component
        within = [component.command_category] if component.reserves_within else []
        return [*component.reservation_categories, *within]

    def rows(self, read: Read) -> DataFrame:
        """Return causes and events, grouped by the global position of the cause."""
        component = self.component
        is_event = F.col("category") == component.name
        is_copy = self._is_copy(PlainNames())
        messages = read(
            [component.command_category, *component.reservation_categories, component.name],
            [*_MESSAGE, "causation", "is_copy", "entity_id", "starts"],
        )
        return messages.select(
            _group(is_event).alias("group"),
            (~is_event).alias("is_cause"),
            is_copy.alias("is_copy"),
            # The stream that the events of its handling go to.
            F.when(~is_event, F.concat(F.lit(f"{component.name}-"), "entity_id")).alias("entity"),
            *_MESSAGE,
            "starts",
        )

    def _is_copy(self, naming: Naming) -> Column:
        """Return whether a message is a reserved copy, for whole rows and for fingerprints."""
        category = F.col("category")
        is_sent = category == naming.category(self.component.command_category)
        is_copy = F.col("is_copy") & is_sent
        for name, key in self._reserved:
            is_here = category == naming.category(key.category)
            is_copy |= is_here & (F.col("type") == naming.type(name))
        return is_copy

    @property
    def _reserved(self) -> list[tuple[str, DeclaredKey]]:
        """The types whose copies are in separate categories."""
        return [
            (type_, key)
            for type_, key in Declaration.of(self.component).keys.items()
            if not key.within and type_ in self.component.reservations
        ]

    def sketch(self, fingerprints: DataFrame, progress: Progress) -> DataFrame:
        """Return of each row what it is, in numbers."""
        numbering = Numbering.of(self.component)
        rows = progress.marked(fingerprints, numbering.category)
        category, type_ = F.col("category"), F.col("type")
        is_event = category == numbering.category(self.component.name)
        is_copy = self._is_copy(numbering)
        was_sent = category == numbering.category(self.component.command_category)
        reserved = [
            n for n, name in enumerate(numbering.types) if name in self.component.reservations
        ]
        number = number_of(category, [numbering.category(name) for name in self.categories])
        silent = [n for n, name in enumerate(numbering.types) if name in self.silent_types]
        is_silent = F.coalesce(type_.isin(*silent), F.lit(False)) if silent else F.lit(False)
        # Whether it may lack an event.
        may_lack = ~F.col("is_letter") & (~F.col("was_read") | is_silent)
        of_cause = {_CAUSE: F.lit(True), _READ: F.col("was_read"), _MAY_LACK: may_lack}
        flags = reduce(
            Column.__add__,
            [F.when(condition, flag).otherwise(0) for flag, condition in of_cause.items()],
        )
        return rows.select(
            _group(is_event).alias("group"),
            "global_position",
            F.when(is_event, _FOLLOWED).otherwise(flags).alias("flags"),
            # Events of one stream and type have the same; most pseudo events have none.
            "kind",
            F.when(is_copy, number).alias("category"),
            # The events of a reserved command mostly follow its copy.
            (was_sent & ~is_copy & type_.isin(*reserved)).alias("is_aside"),
        )

    def groups(self, sketch: DataFrame) -> DataFrame:
        """Return which causes are in order.

        The events that follow such a cause all differ in type or stream. A reserved command is
        followed by at least one event, unless it may lack one.
        """
        groups = (
            sketch.where(~F.coalesce("is_aside", F.lit(False)))
            .groupBy("group")
            .agg(
                F.bit_or("flags").alias("flags"),
                F.count("kind").alias("events"),
                F.min("kind").alias("kind"),
                F.max("kind").alias("last_kind"),
                # One of 64 bits for each kind; two kinds seldom share one.
                F.bit_or(F.expr("shiftleft(1L, CAST(kind & 63 AS int))")).alias("kinds"),
                F.max("category").alias("category"),
            )
        )

        return groups.select(
            "group",
            "category",
            "events",
            _has(_READ).alias("was_read"),
            _has(_FOLLOWED).alias("is_followed"),
            is_in_order(_rules([])).alias("in_order"),
        )

    def counts_in_order(self) -> Mapping[str, Column]:
        """Return what is counted over causes in order."""
        is_followed, was_read = F.col("is_followed"), F.col("was_read")
        of_copy = {
            "reserved": F.lit(True),
            "handled": is_followed,
            "pending": ~is_followed & ~was_read,
            "silent": ~is_followed & was_read,
        }
        counts = {
            f"{n} {name}": ((F.col("category") == n) & condition).cast("int")
            for n in range(len(self.categories))
            for name, condition in of_copy.items()
        }
        return {**counts, "events": F.col("events"), "causes": is_followed.cast("int")}

    @property
    def silent_types(self) -> list[str]:
        """The types of commands whose handling may leave nothing in the log."""
        strategies = self.component.strategies
        return sorted(type_ for type_, once in strategies.items() if not once.leaves_trace)

    def judge(self, rows: DataFrame) -> DataFrame:
        """Give every reserved command its verdict, and every event that should not be there."""
        return judge(rows, self.silent_types, Declaration.of(self.component).names)

    def counts(self) -> Mapping[str, Column]:
        """Return what a row adds to those of each category, under its number and their names."""
        counts = {
            f"{n} {name}": F.when((F.col("category") == category) & condition, 1)
            for n, category in enumerate(self.categories)
            for name, condition in (
                ("reserved", F.col("is_copy")),
                *((verdict, F.col("verdict") == verdict) for verdict in _VERDICTS),
            )
        }
        is_event = ~F.col("is_cause") & F.col("starts")
        return {
            **counts,
            "events": F.when(is_event, 1),
            "causes": F.when(F.col("is_cause") & F.col("is_followed"), 1),
            "effect_twice": F.when(F.col("is_first_again"), 1),
            "without_cause": F.when(F.col("verdict") == "without-cause", 1),
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


def _group(is_event: Column) -> Column:
    """Return the number of the group of a cause and its events."""
    # An event without a cause gets a negative number, which no message has.
    followed = F.coalesce("causation", -F.col("global_position"))
    return F.when(is_event, followed).otherwise(F.col("global_position"))


def _has(flag: int) -> Column:
    """Return whether a group contains what a bit stands for."""
    return F.col("flags").bitwiseAND(flag) != 0


def _rules(silent_types: Sequence[str]) -> list[Rule]:
    """Return the rules of the verdicts, which stand for rows of `judge` and sums of `groups`.

    Args:
        silent_types: the types of commands whose handling may leave nothing in the log.
    """
    is_copy, is_cause = F.col("is_copy"), F.col("is_cause")
    is_silent = F.col("type").isin(*silent_types) if silent_types else F.lit(False)
    events, is_category = F.col("events"), F.col("category").isNotNull()
    are_distinct = (
        (events < 2)
        | ((events == 2) & (F.col("kind") != F.col("last_kind")))
        | (F.bit_count("kinds") == events)
    )
    return [
        Rule("handled", is_copy & F.col("is_followed")),
        Rule("dead", is_copy & F.col("is_letter")),
        Rule("pending", is_copy & ~F.col("was_read")),
        Rule("silent", is_copy & is_silent),
        finding("unhandled", is_copy, is_category & ~_has(_FOLLOWED) & ~_has(_MAY_LACK)),
        Rule(None, ~is_cause & ~F.col("starts")),
        finding("without-cause", ~is_cause & ~F.col("has_cause"), ~_has(_CAUSE)),
        finding("effect-twice", F.col("is_twice"), ~are_distinct),
    ]


def judge(rows: DataFrame, silent_types: list[str], names: Mapping[str, str]) -> DataFrame:
    """Give every reserved command its verdict, and every event that should not be there.

    Args:
        rows: with the columns that `EffectsJob.rows` gives, ``was_read`` and ``is_letter``.
        silent_types: the types of commands whose handling may leave nothing in the log.
        names: the former names of types, with those of today.

    Returns:
        The rows with ``verdict`` (for a reserved command handled, silent, pending, unhandled or
        dead; for an event effect-twice, without-cause or null) and the columns of a finding.
    """
    is_cause, type_ = F.col("is_cause"), own_name(F.col("type"), names)
    order = [~is_cause, F.col("stream_name"), type_, F.col("position")]
    in_order = Window.partitionBy("group").orderBy(*order)
    whole = in_order.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)

    def before(name: str | Column) -> Column:
        return F.lag(name).over(in_order)

    again = (
        ~is_cause
        & F.first(is_cause).over(whole)
        & F.col("starts")
        & ~before("is_cause")
        & (before("stream_name") == F.col("stream_name"))
        & (before(type_) == type_)
    )
    is_again = F.coalesce(again, F.lit(False))
    # In few steps, because Spark analyses each of them.
    grouped = rows.withColumn("is_again", is_again).withColumns(
        {
            "has_cause": F.first(is_cause).over(whole),
            "followers": F.sum(F.when(is_cause, 0).otherwise(1)).over(whole),
            "cause_id": F.first("id").over(whole),
            "cause_stream": F.first("stream_name").over(whole),
            "cause_entity": F.first("entity").over(whole),
            "cause_category": F.first("category").over(whole),
            # The id of the first event of the same stream and type.
            "first_id": F.last(F.when(~F.col("is_again"), F.col("id")), True).over(so_far),
        }
    )
    is_twice = F.col("is_again") & ~(_is_derived("id") & _is_derived("first_id"))
    marked = grouped.withColumn("is_twice", is_twice).withColumn(
        "nth_twice", F.sum(F.when(F.col("is_twice"), 1).otherwise(0)).over(so_far)
    )
    rules = _rules(silent_types)
    return (
        marked.withColumn("is_followed", F.col("followers") > 0)
        .withColumn("verdict", verdict_of(rules))
        .withColumns(
            {
                "is_first_again": F.col("is_twice") & (F.col("nth_twice") == 1),
                "findings": found(finding_of(rules)),
                "command_category": F.when(F.col("has_cause"), F.col("cause_category")),
                "reservation_category": F.col("category"),
                "key_stream": F.when(F.col("has_cause"), F.col("cause_stream")),
                "message_id": F.col("id"),
                "is_open": F.coalesce(F.col("verdict").isin(*_OPEN), F.lit(False)),
            }
        )
    )


def _is_derived(id_: str) -> Column:
    """Return whether the id of an event is one that the framework derives from its cause.

    That is a UUID of version 5 in the namespace of the cause, of an event of the entity itself
    (`followed_id` in `reservation.messages.message`) or of what the handler wrote to the stream of
    another one (`further_id` there).
    """
    namespace = F.unhex(F.regexp_replace("cause_id", "-", ""))
    event, line = F.concat("stream_name", F.lit(" ")), F.lit("\n")
    # An id that is neither a text nor a number is written as JSON, mostly in lower case.
    category = F.substring_index("cause_entity", "-", 1)
    small_id = F.lower(
        F.expr("substr(cause_entity, length(substring_index(cause_entity, '-', 1)) + 1)")
    )
    further = [
        F.concat(entity, line, "stream_name", line)
        for entity in (F.col("cause_entity"), F.concat(category, small_id))
    ]

    def derived(name: Column) -> Column:
        digest = F.sha1(F.concat(namespace, F.encode(name, "UTF-8")))
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

    def is_one_of(name: Column) -> Column:
        same = F.exists(ordinals, lambda n: derived(F.concat(name, n.cast("string"))) == F.col(id_))
        return F.coalesce(same, F.lit(False))  # nothing is derived from what is not a UUID

    return reduce(Column.__or__, map(is_one_of, (event, *further)))
