"""Compare messages with the events that follow them: did each take effect, and once?

The messages are reserved commands, and those of other components that this one subscribes to.

An event names the message that it follows, its cause. A cause and its events are judged together.
This framework derives the ids of events from their cause, and the store accepts each id once. So an
effect that happened twice shows as several events of one type in one stream that follow one cause
and have other ids.

A message of a subscribed category that no event followed from has a pass, a row that its consumer
has recorded. It is read as a pseudo event that follows the message (`spark_jobs.source.passes`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from reservation.component import Component
from spark_jobs.analysis.verdicts import derived_ids, of_effects
from spark_jobs.analysis.verdicts.fingerprints import Numbering
from spark_jobs.analysis.verdicts.judging import (
    Counts,
    Naming,
    PlainNames,
    Read,
    is_passes,
    number_of,
)
from spark_jobs.common.declaration import Declaration, DeclaredKey, passes_of, sources_of
from spark_jobs.common.result import EffectCounts as OfCategory
from spark_jobs.common.result import Events, SubscriptionCounts
from spark_jobs.snapshot.progress import Progress

_MESSAGE = ("category", "global_position", "position", "stream_name", "type", "id", "time")
_VERDICTS = ("handled", "silent", "pending", "unhandled", "dead")
_OF_SUBSCRIBED = ("handled", "passed", "pending", "unhandled", "dead")


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

    @property
    def subscribed(self) -> list[str]:
        """The categories of others that messages are handled of."""
        return self.component.subscribed_categories

    def rows(self, read: Read) -> DataFrame:
        """Return causes, events and passes, grouped by the global position of the cause."""
        component = self.component
        is_follower = F.col("category") == component.name
        is_copy = self._is_copy(PlainNames())
        more = []
        if self.subscribed:
            is_follower |= is_passes(F.col("category"))
            is_copy |= F.col("is_subscribed")
            more.append("is_subscribed")
        messages = read(
            sources_of(component), [*_MESSAGE, "causation", "is_copy", "entity_id", "starts", *more]
        )
        # The stream that the events of its handling go to.
        entity = F.concat(F.lit(f"{component.name}-"), "entity_id")
        return messages.select(
            _group(is_follower).alias("group"),
            (~is_follower).alias("is_cause"),
            is_copy.alias("is_copy"),
            F.when(
                ~is_follower, F.when(self._is_elsewhere(), F.lit(derived_ids.ANY)).otherwise(entity)
            ).alias("entity"),
            *_MESSAGE,
            "starts",
        )

    def _is_elsewhere(self) -> Column:
        """Return whether a function of the component says which entity a message is for."""
        found = F.lit(False)
        for category, types in Declaration.of(self.component).subscriptions.items():
            by_function = [name for name, one in types.items() if one.id is None]
            found |= (F.col("category") == category) & F.col("type").isin(*by_function)
        return found

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
        is_pass = category.isin(*map(numbering.category, passes_of(self.component)))
        is_subscribed = category.isin(*map(numbering.category, self.subscribed))
        is_copy = self._is_copy(numbering) | (is_subscribed & F.col("is_copy"))
        was_sent = category == numbering.category(self.component.command_category)
        reserved = [
            n for n, name in enumerate(numbering.types) if name in self.component.reservations
        ]
        judged = [*self.categories, *self.subscribed]
        number = number_of(category, [numbering.category(name) for name in judged])
        silent = [n for n, name in enumerate(numbering.types) if name in self.silent_types]
        is_silent = F.coalesce(type_.isin(*silent), F.lit(False)) if silent else F.lit(False)
        # Whether it may lack an event.
        may_lack = ~F.col("is_letter") & (~F.col("was_read") | is_silent)
        of_cause = {
            of_effects.CAUSE: F.lit(True),
            of_effects.READ: F.col("was_read"),
            of_effects.MAY_LACK: may_lack,
        }
        flags = reduce(
            Column.__add__,
            [F.when(condition, flag).otherwise(0) for flag, condition in of_cause.items()],
        )
        return rows.select(
            _group(is_event | is_pass).alias("group"),
            "global_position",
            F.when(is_event, of_effects.FOLLOWED)
            .when(is_pass, of_effects.PASSED)
            .otherwise(flags)
            .alias("flags"),
            # Events of one stream and type have the same; most pseudo events have none.
            "kind",
            F.when(is_copy, number).alias("category"),
            # The events of a reserved command mostly follow its copy.
            (was_sent & ~is_copy & type_.isin(*reserved)).alias("is_aside"),
        )

    def groups(self, sketch: DataFrame) -> DataFrame:
        """Return which causes are in order.

        The events that follow such a cause all differ in type or stream. A reserved command is
        followed by at least one event, unless it may lack one, and a subscribed message by an event
        or a pass.
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
            of_effects.has(of_effects.READ).alias("was_read"),
            of_effects.has(of_effects.FOLLOWED).alias("is_followed"),
            of_effects.has(of_effects.PASSED).alias("was_passed"),
            of_effects.in_order().alias("in_order"),
        )

    def counts_in_order(self) -> Mapping[str, Column]:
        """Return what is counted over causes in order."""
        is_followed, was_read = F.col("is_followed"), F.col("was_read")
        is_without = ~is_followed & ~F.col("was_passed")
        of_copy = {
            "reserved": F.lit(True),
            "handled": is_followed,
            "pending": is_without & ~was_read,
            "silent": is_without & was_read,
        }
        of_subscribed = {
            "subscribed": F.lit(True),
            "handled": is_followed,
            "passed": ~is_followed & F.col("was_passed"),
            "pending": is_without & ~was_read,
        }
        reserved = len(self.categories)
        counts = {
            f"{n} {name}": ((F.col("category") == n) & condition).cast("int")
            for n in range(reserved + len(self.subscribed))
            for name, condition in (of_copy if n < reserved else of_subscribed).items()
        }
        return {**counts, "events": F.col("events"), "causes": is_followed.cast("int")}

    @property
    def silent_types(self) -> list[str]:
        """The types of commands whose handling may leave nothing in the log."""
        strategies = self.component.strategies
        return sorted(type_ for type_, once in strategies.items() if not once.leaves_trace)

    def judge(self, rows: DataFrame) -> DataFrame:
        """Give every reserved command its verdict, and every event that should not be there."""
        names = Declaration.of(self.component).names
        return of_effects.judge(rows, self.silent_types, names, self.subscribed)

    def counts(self) -> Mapping[str, Column]:
        """Return what a row adds to those of each category, under its number and their names."""
        of_reserved = [(name, "reserved", _VERDICTS) for name in self.categories]
        of_subscribed = [(name, "subscribed", _OF_SUBSCRIBED) for name in self.subscribed]
        counts = {
            f"{n} {name}": F.when((F.col("category") == category) & condition, 1)
            for n, (category, all_, verdicts) in enumerate([*of_reserved, *of_subscribed])
            for name, condition in (
                (all_, F.col("is_copy")),
                *((verdict, F.col("verdict") == verdict) for verdict in verdicts),
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

    def subscriptions(self, counts: Counts) -> list[SubscriptionCounts]:
        """Return what was counted of each category that messages are handled of."""
        names = ("subscribed", *_OF_SUBSCRIBED)
        return [
            SubscriptionCounts(category, **{name: counts[f"{n} {name}"] for name in names})
            for n, category in enumerate(self.subscribed, len(self.categories))
        ]


def _group(is_follower: Column) -> Column:
    """Return the number of the group of a cause and what follows it."""
    # An event without a cause gets a negative number, which no message has.
    followed = F.coalesce("causation", -F.col("global_position"))
    return F.when(is_follower, followed).otherwise(F.col("global_position"))
