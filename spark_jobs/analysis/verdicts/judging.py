"""The common part of the jobs that give every message a verdict.

A job divides messages into groups, judges each group separately, and counts verdicts. The counts of
different groups can be added up, so a run need only judge the groups that have changed
(`spark_jobs.reconciliation.state.incremental`).

The verdicts of a job are a table of rules. Each rule says when a row has a verdict, and when a
group may contain such a row. The first is asked of whole rows. The second is asked of sums over
fingerprints (`spark_jobs.analysis.verdicts.prefilter`), and must be true whenever the first could
be.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Protocol

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from reservation.messages.stream_name import ID_SEPARATOR
from spark_jobs.common.caching import kept_on_disk, unpersisted
from spark_jobs.snapshot.progress import Progress


class Read(Protocol):
    """Reads columns of categories, as `spark_jobs.reconciliation.reading.categories` does."""

    def __call__(
        self, categories: Sequence[str], columns: Sequence[str], *, firsts_of: Sequence[str] = ()
    ) -> DataFrame:
        """Return them in one DataFrame."""


class Messages(Read, Protocol):
    """Reads columns of all messages of categories, or of some of them."""

    def at(self, positions: DataFrame) -> Read:
        """Return what reads the messages at the positions in the column ``global_position``."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Reads columns of categories from a DataFrame of messages.

    Attributes:
        messages: the messages.
    """

    messages: DataFrame

    def __call__(
        self, categories: Sequence[str], columns: Sequence[str], *, firsts_of: Sequence[str] = ()
    ) -> DataFrame:
        """Return them; see `Read`."""
        category = F.col("category")
        wanted = category.isin(*categories)
        if firsts_of:
            wanted &= ~category.isin(*firsts_of) | F.col("is_first")
        return self.messages.where(wanted).select(*columns)

    def at(self, positions: DataFrame) -> "Rows":
        """Return what reads the messages at some positions only; see `Messages`."""
        positions = positions.select("global_position")
        return Rows(self.messages.join(positions, "global_position", "left_semi"))


def number_of(name: Column, names: Sequence[str | int]) -> Column:
    """Return the index of a name in a list; null if the list does not contain it."""
    number = F.lit(None).cast("int")
    for n, known in enumerate(names):
        number = F.when(name == known, n).otherwise(number)
    return number


def own_name(type_: Column, names: Mapping[str, str]) -> Column:
    """Return the name that a message's type has today."""
    own = type_
    for name, now in names.items():
        own = F.when(type_ == name, F.lit(now)).otherwise(own)
    return own


def is_passes(category: Column) -> Column:
    """Return whether a row is a pass of a consumer, and no message."""
    return F.contains(category, F.lit(ID_SEPARATOR))


@dataclass(frozen=True, slots=True)
class Rule:
    """When a row has a verdict.

    Attributes:
        verdict: its name; None for a row that gets none.
        row: the condition, unless an earlier rule applies.
        group: whether a row of the group may have this verdict, for a verdict that shows only when
            the rows are judged; None for one that is counted over groups in order too.
        is_finding: whether the row needs attention.
    """

    verdict: str | None
    row: Column
    group: Column | None = None
    is_finding: bool = False


def finding(name: str, row: Column, group: Column) -> Rule:
    """Return the rule of a verdict that needs attention."""
    return Rule(name, row, group, is_finding=True)


def verdict_of(rules: Sequence[Rule]) -> Column:
    """Return the verdict of a row: that of the first rule that applies, else null."""
    verdict = F.lit(None).cast("string")
    for rule in reversed(rules):
        verdict = F.when(rule.row, F.lit(rule.verdict)).otherwise(verdict)
    return verdict


def finding_of(rules: Sequence[Rule]) -> Column:
    """Return the column ``verdict`` of a row that needs attention, else null."""
    names = [rule.verdict for rule in rules if rule.is_finding]
    return F.when(F.col("verdict").isin(*names), F.col("verdict"))


def is_in_order(rules: Sequence[Rule]) -> Column:
    """Return whether no row of a group can have a verdict that shows only in its rows."""
    doubts = [rule.group for rule in rules if rule.group is not None]
    return ~F.coalesce(reduce(Column.__or__, doubts), F.lit(True))


# The columns of findings, in the order of the output.
FINDING = (
    "finding",
    "command_category",
    "reservation_category",
    "key_stream",
    "stream_name",
    "position",
    "global_position",
    "type",
    "message_id",
    "time",
)

# The same of a judged row, which may have several findings.
FOUND = ("findings", *FINDING[1:])

Counts = dict[str, int]

# A message, and the one that it was compared with.
PAIR = ("global_position", "compared_with")

# Gives what reads the messages at the positions in the column ``global_position`` of a DataFrame.
Lookup = Callable[[DataFrame], Read]


class Comparison(Protocol):
    """Compares messages that differ as they are stored."""

    def is_needed(self, counts: Counts) -> bool:
        """Return whether anything was found to be different."""

    def compared(self, pairs: DataFrame, lookup: Lookup, given: Mapping[int, str]) -> DataFrame:
        """Return pairs with ``same``, whether both mean the same."""


class Job(Protocol):
    """A job that judges groups of messages."""

    name: str

    @property
    def comparison(self) -> Comparison | None:
        """Compares what differs, which its rows then have in ``compared_with``; None if nothing."""

    def rows(self, read: Read) -> DataFrame:
        """Return the messages to judge, each with its ``group``."""

    def judge(self, rows: DataFrame) -> DataFrame:
        """Return the rows with what is found of each.

        Adds the missing columns of `FOUND`, where ``findings`` is empty for a row that needs no
        attention; ``is_open``, whether the verdict may change once a consumer has read more; and
        the columns that are counted.
        """

    def counts(self) -> Mapping[str, Column]:
        """Return what each judged row adds to each count: a number, or null for nothing."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What a job found.

    Attributes:
        counts: the sums, by their names.
        findings: the rows that need attention, cached until they are unpersisted.
    """

    counts: Counts
    findings: DataFrame


def run(job: Job, rows: DataFrame, progress: Progress, lookup: Lookup) -> Judged:
    """Judge all rows, in one pass over them; in two if something differs and means the same."""
    rows, comparison = progress.marked(rows), job.comparison
    found = _run(job, rows)
    if comparison is None or not comparison.is_needed(found.counts):
        return found
    pairs = kept_on_disk(pairs_of(found.findings))
    compared = kept_on_disk(comparison.compared(pairs, lookup, progress.given))
    with unpersisted([pairs, compared]):
        if compared.where("same").count():
            found.findings.unpersist()
            found = _run(job, with_alike(rows, compared))
    return found


def _run(job: Job, rows: DataFrame) -> Judged:
    observed, counts = Observation(), job.counts()
    sums = [F.sum(number).alias(name) for name, number in counts.items()]
    judged = job.judge(rows).observe(observed, *sums)
    more = [] if job.comparison is None else ["compared_with"]
    findings = kept_on_disk(findings_of(judged, *more))
    findings.count()
    return Judged({name: int(observed.get[name] or 0) for name in counts}, findings)


def pairs_of(judged: DataFrame) -> DataFrame:
    """Return the pairs of judged rows that differ; see `PAIR`."""
    return judged.where(F.col("compared_with").isNotNull()).select(*PAIR).distinct()


def with_alike(rows: DataFrame, compared: DataFrame) -> DataFrame:
    """Add ``alike``: the positions of the messages that mean the same as the row; null for none."""
    alike = compared.where("same").groupBy("global_position")
    return rows.join(
        alike.agg(F.collect_set("compared_with").alias("alike")), "global_position", "left"
    )


def findings_of(judged: DataFrame, *more: str) -> DataFrame:
    """Return the findings of judged rows, a row each, with the ``group`` that each is in."""
    group = F.col("group").cast("string").alias("group")
    return judged.withColumn("finding", F.explode("findings")).select(*FINDING, group, *more)


def found(*findings: Column) -> Column:
    """Return those of several findings of a row that are not null."""
    return F.array_compact(F.array(*findings))


def combined(findings: Sequence[DataFrame]) -> DataFrame:
    """Return the findings of several jobs in one DataFrame."""
    return reduce(DataFrame.unionByName, [rows.select(*FINDING, "group") for rows in findings])
