"""The messages of groups whose summaries do not say everything, which are read again.

These are keys whose commands do not all say the same, or that have several reservations, or letters
of the consumers; and causes with several events of one kind, or that were not read.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import chain

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from reservation.declaration.table import declarations
from spark_jobs.common.caching import computed
from spark_jobs.common.concurrency import run_concurrently
from spark_jobs.common.declaration import Declaration, categories_of
from spark_jobs.common.spark_sql import SparkQueries
from spark_jobs.facts.codes import Codes
from spark_jobs.facts.keys import entity_streams
from spark_jobs.facts.reader import FOLDED, Facts
from spark_jobs.session.settings import FEW
from spark_jobs.snapshot.meaning import with_meaning
from spark_jobs.snapshot.progress import Progress
from spark_jobs.verdicts import letter_states
from spark_jobs.verdicts.derived_ids import effects_again
from spark_jobs.verdicts.meaning import DIFFERENCES, PAIR, Lookup, Meanings

_QUERIES = SparkQueries("spark_jobs.verdicts", "rows.sql")
_ROWS = (*FOLDED, "place")

# The group of the fact of a command or a reservation, in Spark's SQL.
_OF_KEYS = "coalesce(key, position)"

# Numbers of the groups whose messages are read, by whether they are keys: of all, of keys whose
# messages do not all say the same, of groups that are scattered, with messages besides their parts'
# first and last ones, and of larger keys.
OPEN = ("number", "differing", "scattered", "larger")
OpenGroups = dict[bool, Counter[str]]


@dataclass(frozen=True, slots=True)
class Rows:
    """Reads and judges messages of groups.

    Attributes:
        facts: reads facts.
        lookup: reads columns of messages.
        comparison: compares messages by what they mean.
    """

    facts: Facts
    lookup: Lookup
    comparison: Meanings

    @property
    def codes(self) -> Codes:
        """The codes of the messages."""
        return Codes.of(self.facts.component)

    def with_letters(self, states: DataFrame, progress: Progress) -> DataFrame:
        """Return the keys of messages that were recorded as conflicts, or corrected."""
        conflicts = (consumed.conflicts for consumed in progress.consumed.values())
        corrected = (correction.global_position for correction in progress.corrections)
        positions = [*chain.from_iterable(conflicts), *corrected]
        if not positions:
            return states.select(F.col("position").alias("grp")).where("false")
        facts = self.facts.at(self._frame(positions)).where("code % 16 IN (1, 2, 3, 4)")
        return facts.select(F.coalesce("key", "position").alias("grp")).distinct()

    def judged(
        self,
        open_: DataFrame,
        states: DataFrame,
        progress: Progress,
        was_read: str,
        numbers: OpenGroups,
    ) -> tuple[DataFrame, list[DataFrame]]:
        """Return the groups as their messages show them, and findings."""
        work: list[Callable[[], tuple[DataFrame, list[DataFrame]]]] = []
        if True in numbers:
            keys = open_.where("is_key")
            work.append(partial(self._of_keys, keys, numbers[True], states, progress, was_read))
        if False in numbers:
            work.append(partial(self._of_causes, open_.where("NOT is_key"), numbers[False]))
        groups, findings = zip(*run_concurrently(work), strict=True)
        return reduce(DataFrame.unionByName, groups), [*chain.from_iterable(findings)]

    def _of_keys(
        self,
        open_: DataFrame,
        numbers: Counter[str],
        states: DataFrame,
        progress: Progress,
        was_read: str,
    ) -> tuple[DataFrame, list[DataFrame]]:
        """Return keys as their messages show them, and findings."""
        declared = declarations(self.facts.component)
        own = [*declared.own_categories, *([self.facts.component.name] * declared.own.initiates)]
        facts = self._facts(open_, numbers["scattered"], own, _OF_KEYS)
        conflicts = [consumed.conflicts for consumed in progress.consumed.values()]
        if progress.corrections or any(conflicts):
            facts = facts.unionByName(self.facts.at(states.select("position"), _ROWS))
            facts = facts.dropDuplicates(["position"])
        found = self._found(facts, open_, numbers, states, progress, was_read)
        if numbers["larger"] and (incomplete := _QUERIES("incomplete", {"found": found})).take(1):
            groups = open_.join(incomplete, "grp", "left_semi")
            scanned = self._scanned(groups, numbers["larger"], own, _OF_KEYS)
            completed = self._found(scanned, open_, numbers, states, progress, was_read)
            found = found.join(incomplete, "grp", "left_anti").unionByName(completed)
        groups = _QUERIES("groups", {"found": found})
        return groups, [_QUERIES("findings_of_keys", {"found": found})]

    def _found(
        self,
        facts: DataFrame,
        open_: DataFrame,
        numbers: Counter[str],
        states: DataFrame,
        progress: Progress,
        was_read: str,
    ) -> DataFrame:
        """Return the messages of keys, with the findings of each."""
        frames = {"facts": facts, "open": open_, "letter_states": states}
        rows = _QUERIES("of_keys", frames, group=_OF_KEYS)
        parts = {
            "was_read": was_read,
            "records_conflicts": letter_states.records_conflicts(self.codes, progress.consumed),
        }
        rows = self._with_meaning(rows, progress)
        referred = computed(_QUERIES("referred", {"rows": rows}, **parts))
        if not (numbers["differing"] or progress.corrections):
            none = f"cast(NULL AS {DIFFERENCES}) AS differences"
            nothing = self._frame([]).selectExpr("position", "position AS referred", none)
            return _QUERIES("found", {"same": _same(referred, nothing)})
        differing = _QUERIES("differing", {"referred": referred}).toDF(*PAIR)
        compared = self.comparison.compared(differing, self.lookup, progress.given)
        compared = compared.toDF("position", "referred", "differences")
        return computed(_QUERIES("found", {"same": _same(referred, compared)}))

    def _with_meaning(self, rows: DataFrame, progress: Progress) -> DataFrame:
        """Add digests of what the messages say, the same for what a correction made the same."""
        if not progress.corrections:
            return rows.withColumns({"says": F.col("digest"), "is_reissue": F.lit(False)})
        rows = computed(rows)
        declared = declarations(self.facts.component)
        categories = [declared.command_category, *declared.reservation_categories]
        columns = ["global_position", "type", "version", "content"]
        contents = self.lookup(_at(rows, "position"), categories, columns)
        meant = with_meaning(contents, progress.corrections).select(
            F.col("global_position").alias("position"),
            F.xxhash64("type", F.coalesce("version", F.lit("")), "meant").alias("says"),
            "is_reissue",
        )
        return rows.join(meant, "position", "left")

    def _of_causes(
        self, open_: DataFrame, numbers: Counter[str]
    ) -> tuple[DataFrame, list[DataFrame]]:
        """Return causes as their events show them, and findings."""
        component = self.facts.component
        categories = [name for name in categories_of(component) if name != component.name]
        entity = F.concat(F.lit(f"{component.name}-"), "entity_id")
        columns = [
            "category",
            "global_position",
            "id",
            "entity_id",
            "type",
            "version",
            "entity_data",
        ]
        messages = self.lookup(_at(open_, "grp"), categories, columns)
        if Declaration.of(component).decoded_entities:
            entity = F.coalesce(entity_streams(self.facts.app, self.facts.app_dir), entity)
        causes = computed(
            messages.select(
                F.col("global_position").alias("position"),
                F.col("id").alias("cause_id"),
                entity.alias("entity"),
            )
        )
        facts = self._facts(open_, numbers["scattered"], [component.name], "cause")
        events = computed(_QUERIES("followers", {"facts": facts, "open": open_}))
        by_group = causes.withColumnRenamed("position", "grp")
        again = _QUERIES("again", {"followers": events}).join(by_group, "grp")
        ids = self.lookup(
            _at(again, "position"), [component.name], ["global_position", "id", "stream_name"]
        ).withColumnRenamed("global_position", "position")
        twice = computed(effects_again(again.join(ids, "position")))
        without_cause = events.join(by_group, "grp", "left_anti")
        groups = _QUERIES("causes", {"open": open_, "causes": causes, "twice": twice})
        return groups, [
            events.select(F.lit(name).alias("finding"), "position", "grp")
            for name, events in (("effect-twice", twice), ("without-cause", without_cause))
        ]

    def _facts(
        self, open_: DataFrame, scattered: int, categories: Sequence[str], group: str
    ) -> DataFrame:
        """Return the facts of groups: by their positions, or by a scan where there are more."""
        facts = self.facts.at(_QUERIES("positions", {"open": open_}), _ROWS, required=True)
        if not scattered:
            return facts
        groups = _QUERIES("scattered", {"open": open_})
        scanned = self._scanned(groups, scattered, categories, group)
        return facts.unionByName(scanned).dropDuplicates(["position"])

    def _scanned(
        self, groups: DataFrame, number: int, categories: Sequence[str], group: str
    ) -> DataFrame:
        """Return the facts of groups, a number of them at most, by a scan of all between them."""
        (row,) = _QUERIES("range", {"open": groups}).collect()
        after = dict.fromkeys(categories, row["first"] - 1)
        until = dict.fromkeys(categories, row["last"])
        facts = self.facts.between(after, until, _ROWS).withColumn("grp", F.expr(group))
        wanted = groups.select("grp")
        # Few groups are sent to where the facts are read, and many facts nowhere.
        wanted = F.broadcast(wanted) if number <= FEW else wanted
        return facts.join(wanted, "grp", "left_semi").drop("grp")

    def _frame(self, positions: Sequence[int]) -> DataFrame:
        table = pa.table({"position": pa.array(sorted({*positions}), pa.int64())})
        return self.facts.spark.createDataFrame(table, "position bigint")


def _same(referred: DataFrame, compared: DataFrame) -> DataFrame:
    return _QUERIES("same", {"referred": referred, "compared": compared})


def _at(rows: DataFrame, name: str) -> DataFrame:
    return rows.select(F.col(name).alias("global_position"))
