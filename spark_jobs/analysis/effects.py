"""Compare messages with the events that follow them: did each take effect, and once?

The messages are reserved commands, and those of other components that this one subscribes to.

An event names the message that it follows, its cause. A cause and its events are judged together.
This framework derives the ids of events from their cause, and the store accepts each id once. So an
effect that happened twice shows as several events of one type in one stream that follow one cause
and have other ids.

A message of a subscribed category that no event followed from has a pass, a row that its consumer
has recorded. It is read as a pseudo event that follows the message (`spark_jobs.source.passes`).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from reservation.component import Component
from reservation.declaration.table import declarations
from spark_jobs.analysis.keys import entity_streams
from spark_jobs.analysis.sketches.sketch import EffectsSketch
from spark_jobs.analysis.verdicts import of_effects
from spark_jobs.analysis.verdicts.fingerprints import Numbering
from spark_jobs.analysis.verdicts.judging import (
    Counts,
    Read,
    is_passes,
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
    """The job, for one component.

    Attributes:
        component: the component.
        app: the app path by which Spark's workers find it.
        app_dir: the folder of the app; None if its modules were sent to the workers.
    """

    component: Component
    app: str
    app_dir: Path | None

    name = "effects"
    comparison = None

    @property
    def categories(self) -> list[str]:
        """The reservation categories, each once."""
        return declarations(self.component).reservation_categories

    @property
    def subscribed(self) -> list[str]:
        """The categories of others that messages are handled of."""
        return declarations(self.component).subscribed_categories

    def rows(self, read: Read) -> DataFrame:
        """Return causes, events and passes, grouped by the global position of the cause."""
        component = self.component
        is_follower = F.col("category") == component.name
        is_copy = self._is_copy()
        # The stream that the events of its handling go to.
        entity = F.concat(F.lit(f"{component.name}-"), "entity_id")
        more = []
        if self.subscribed:
            is_follower |= is_passes(F.col("category"))
            is_copy |= F.col("is_subscribed")
            more.append("is_subscribed")
        if Declaration.of(component).decoded_entities:
            of_code = ("category", "type", "version", "entity_data")
            entity = F.coalesce(entity_streams(self.app, self.app_dir)(*of_code), entity)
            more += ["version", "entity_data"]
        messages = read(
            sources_of(component), [*_MESSAGE, "causation", "entity_id", "starts", *more]
        )
        return messages.select(
            _group(is_follower).alias("group"),
            (~is_follower).alias("is_cause"),
            is_copy.alias("is_copy"),
            F.when(~is_follower, entity).alias("entity"),
            *_MESSAGE,
            "starts",
        )

    def _is_copy(self) -> Column:
        """Return whether a message is a reserved copy."""
        category, is_copy = F.col("category"), F.lit(False)
        for name, key in self._reserved:
            is_copy |= (category == key.category) & (F.col("type") == name)
        return is_copy

    @property
    def _reserved(self) -> list[tuple[str, DeclaredKey]]:
        """The types of reserved commands, and how their keys are made."""
        return [
            (type_, key)
            for type_, key in Declaration.of(self.component).keys.items()
            if type_ in declarations(self.component).own.reservations
        ]

    def sketch(self, progress: Progress) -> EffectsSketch:
        """Return what is summed up of the fingerprints of causes and what follows them."""
        component, numbering = self.component, Numbering.of(self.component)

        declared = declarations(component)

        def types(names: Collection[str]) -> list[int]:
            return [n for n, name in enumerate(numbering.types) if name in names]

        def categories(names: Sequence[str]) -> list[int]:
            return [numbering.category(name) for name in names]

        return EffectsSketch(
            numbering.consumed(progress),
            numbering.category(declared.command_category),
            numbering.category(component.name),
            passes=categories(passes_of(component)),
            subscribed=categories(self.subscribed),
            copies=[
                (numbering.category(key.category), numbering.type(name))
                for name, key in self._reserved
            ],
            judged=categories([*self.categories, *self.subscribed]),
            reserved=types(declared.own.reservations),
            silent=types(self.silent_types),
        )

    def groups(self, seen: DataFrame) -> DataFrame:
        """Return which causes are in order.

        The events that follow such a cause all differ in type or stream. A reserved command is
        followed by at least one event, unless it may lack one, and a subscribed message by an event
        or a pass.
        """
        names = ("is_member", "is_cause", "was_read", "may_lack", "is_followed", "was_passed")
        flags = seen.withColumns({name: F.col(name) == 1 for name in names})
        has_effect = F.col("is_followed") | F.col("was_passed")
        return flags.withColumns(
            {
                # A reserved command that nothing follows is judged with its copy.
                "in_order": ~F.col("is_member") | of_effects.in_order(),
                "may_change": F.col("category").isNotNull() & ~has_effect & ~F.col("was_read"),
            }
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
        strategies = declarations(self.component).own.strategies
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
