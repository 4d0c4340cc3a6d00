"""Compare commands with their reservations: is every command reserved, and each key once?

Every row of the categories gets one verdict (`spark_jobs.analysis.verdicts.of_commands`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from reservation.component import Component
from reservation.declaration.table import declarations
from spark_jobs.analysis.keys import reserved_key, with_function_keys
from spark_jobs.analysis.sketches.sketch import CommandsSketch
from spark_jobs.analysis.verdicts import of_commands
from spark_jobs.analysis.verdicts.fingerprints import Numbering
from spark_jobs.analysis.verdicts.judging import Counts, Read
from spark_jobs.analysis.verdicts.meaning import Meanings
from spark_jobs.common.declaration import Declaration, own_categories_of
from spark_jobs.common.result import CommandCounts
from spark_jobs.snapshot.progress import Progress

_MESSAGE = ("category", "global_position", "position", "stream_name", "type", "id", "time")

# The name of each count of a pair, and the verdict that it counts.
_VERDICTS = {
    "duplicates": "duplicate",
    "missing": "missing",
    "pending": "pending",
    "dead": "dead",
    "orphans": "orphan",
    "conflicts": "conflict",
    "wrong_type": "wrong-type",
}


@dataclass(frozen=True, slots=True)
class _Roles:
    """What a message is, as columns.

    Attributes:
        was_sent: whether it is in the command category.
        is_event: whether it is in the entity's category.
        is_wrong: whether it is in a reservation category that reserves no message of its type.
    """

    was_sent: Column
    is_event: Column
    is_wrong: Column


@dataclass(frozen=True, slots=True)
class CommandsJob:
    """The job, for one component.

    Attributes:
        component: whose commands they are.
        app, app_dir: the app path by which Spark's workers find it, for keys that are functions and
            for comparing commands by what they mean, and its folder; None where its modules were
            sent to them.
    """

    component: Component
    app: str
    app_dir: Path | None

    name = "reconcile"

    @property
    def pairs(self) -> list[str]:
        """The categories that commands are compared with, each once."""
        component = self.component
        declared = declarations(component)
        pairs = list(declared.reservation_categories)
        if declared.own.initiates:
            pairs.append(component.name)
        return pairs

    @property
    def comparison(self) -> Meanings:
        """How commands are compared that differ as they are stored."""
        component = self.component
        declared = declarations(component)
        return Meanings(
            declared.command_category,
            declared.reservation_categories,
            self.app,
            self.app_dir,
        )

    def rows(self, read: Read) -> DataFrame:
        """Return commands and reservations, grouped by key.

        The first event of an entity's stream stands for the reservation of a command that
        initiates. Pseudo events do not count as first, but for the rejection of such a command.
        """
        component, declaration = self.component, Declaration.of(self.component)
        declared = declarations(component)
        starts = [component.name] if declared.own.initiates else []
        made = ["causation", "version", "content", "sender"]
        needed = ["key_category", "key_stream", "starts"]
        if declaration.by_function:
            needed.append("function_data")
        messages = with_function_keys(
            read(
                [*declared.own_categories, *starts],
                [*_MESSAGE, *made, *needed],
                firsts_of=starts if declared.starts_are_first else [],
            ),
            declaration,
            self.app,
            self.app_dir,
        )
        category = F.col("category")
        role = self._roles()
        was_sent, is_start = role.was_sent, role.is_event
        return (
            messages.where(
                (was_sent & F.col("key_category").isNotNull())
                | (~was_sent & ~(is_start & ~F.col("starts")))
            )
            .select(
                F.when(was_sent, F.col("key_category")).otherwise(category).alias("pair"),
                was_sent.alias("is_command"),
                role.is_wrong.alias("is_wrong"),
                F.when(was_sent, F.col("key_stream"))
                .when(is_start, F.col("stream_name"))
                .otherwise(reserved_key(declaration))
                .alias("key_stream"),
                *_MESSAGE,
                *made,
            )
            .withColumn("group", _group())
        )

    def _roles(self) -> "_Roles":
        """Return what a message is to this job."""
        component, category = self.component, F.col("category")
        was_sent, is_event = (
            category == declarations(component).command_category,
            category == component.name,
        )
        is_right = F.lit(False)
        for name, key in Declaration.of(component).keys.items():
            is_right |= (category == key.category) & (F.col("type") == name)
        return _Roles(
            was_sent,
            is_event,
            ~was_sent & ~is_event & ~F.coalesce(is_right, F.lit(False)),
        )

    def sketch(self, progress: Progress) -> CommandsSketch:
        """Return what is summed up of the fingerprints of commands and reservations."""
        component, numbering = self.component, Numbering.of(self.component)
        declared = declarations(component)
        keys = Declaration.of(component).keys.items()
        category = numbering.category
        pairs = (*declared.reservation_categories, component.name)
        return CommandsSketch(
            numbering.consumed(progress),
            category(declared.command_category),
            category(component.name),
            own=[category(name) for name in own_categories_of(component)],
            right=[(category(key.category), numbering.type(name)) for name, key in keys],
            pair_of_type={
                numbering.type(name): self.pairs.index(key.category) for name, key in keys
            },
            pair_of_category={
                category(name): self.pairs.index(name) for name in pairs if name in self.pairs
            },
            initiates=declared.own.initiates,
            only_first=declared.starts_are_first,
        )

    def groups(self, seen: DataFrame) -> DataFrame:
        """Return which keys are in order.

        All commands of such a key have the same content, and none was corrected. It has one
        reservation with this content too, or the consumer has not read any of its commands yet.
        """
        commands, reservations = F.col("commands"), F.col("reservations")
        # Keys of two categories whose hashes are the same are judged row by row, and so is a key
        # of which a message was corrected.
        is_one = F.coalesce(F.col("pair") == F.col("last_pair"), F.lit(False))
        return seen.withColumns(
            {
                "is_reserved": (commands > 0) & (reservations == 1),
                "is_pending": (commands > 0) & (reservations == 0),
                "in_order": is_one & (F.col("corrected") == 0) & of_commands.in_order(),
                "may_change": reservations == 0,
            }
        )

    def counts_in_order(self) -> Mapping[str, Column]:
        """Return what is counted over keys in order."""
        commands = F.col("commands")
        is_key = (commands > 0).cast("int")
        of_key = {
            "commands": commands,
            "keys": is_key,
            "duplicates": commands - is_key,
            "reserved": F.col("is_reserved").cast("int"),
            "pending": F.col("is_pending").cast("int"),
        }
        return _counted(
            {
                f"{n} {name}": F.when(F.col("pair") == n, count)
                for n in range(len(self.pairs))
                for name, count in of_key.items()
            }
        )

    def judge(self, rows: DataFrame) -> DataFrame:
        """Give every command and reservation its verdict."""
        component = self.component
        declared = declarations(component)
        return of_commands.judge(
            rows,
            declared.command_category,
            component.name if declared.own.initiates else None,
        )

    def counts(self) -> Mapping[str, Column]:
        """Return what a row adds to those of each pair, under its number and the count's name."""
        return _counted(
            {
                f"{n} {name}": column
                for n, pair in enumerate(self.pairs)
                for name, column in _counts(F.col("pair") == pair).items()
            }
        )

    def results(self, counts: Counts) -> list[CommandCounts]:
        """Return what was counted, for each pair."""
        component = self.component
        return [
            CommandCounts(
                declarations(component).command_category,
                pair,
                initiates=pair == component.name,
                **{
                    name.removeprefix(f"{n} "): count
                    for name, count in counts.items()
                    if name.startswith(f"{n} ")
                },
            )
            for n, pair in enumerate(self.pairs)
        ]


def _counted(counts: dict[str, Column]) -> dict[str, Column]:
    """Return what is counted; Spark needs something, and a component may only subscribe."""
    return counts or {"nothing": F.lit(0)}


def _group() -> Column:
    """Return the group of a row: its key, or its own position without a key."""
    alone = F.concat(F.lit("-"), F.col("global_position").cast("string"))
    key = F.when(F.col("is_wrong"), alone).otherwise(F.coalesce("key_stream", alone))
    # No category name contains a line feed.
    return F.concat(F.col("pair"), F.lit("\n"), key)


def _counts(here: Column) -> dict[str, Column]:
    """Return what a judged row adds to the counts of a pair."""

    def count(condition: Column) -> Column:
        return F.when(here & condition, 1)

    is_keyless, verdict = F.col("is_command") & F.col("key_stream").isNull(), F.col("verdict")
    counts = {
        "commands": count(F.col("is_command")),
        "keys": count(F.col("is_key")),
        "keyless": count(is_keyless & ~verdict.eqNullSafe("duplicate")),
        "reserved": count(
            (F.col("is_key") & F.col("is_reserved")) | (is_keyless & verdict.eqNullSafe("reserved"))
        ),
        "corrected": count(
            (F.col("is_key") & F.col("was_corrected")) | (is_keyless & F.col("is_corrected"))
        ),
        "multiple": count(F.col("is_second")),
        "conflict_mismatches": count(F.col("is_mismatch")),
    }
    for name, counted in _VERDICTS.items():
        counts[name] = count(verdict == counted)
    return counts
