"""What jobs that give every message a verdict have in common.

Such a job brings messages together in groups, judges each group by itself, and counts verdicts, so
that what it found of one part of the groups and of another can be added up. That is what lets a run
look only at the groups that something has changed in (`spark_jobs.reconciliation.incremental`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Protocol

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from spark_jobs.snapshot.progress import Progress


class Read(Protocol):
    """Reads columns of categories, as `spark_jobs.reconciliation.categories` does."""

    def __call__(
        self, categories: Sequence[str], columns: Sequence[str], *, firsts_of: Sequence[str] = ()
    ) -> DataFrame:
        """Return them in one DataFrame.

        Args:
            categories: their names.
            columns: of `spark_jobs.source.columns`.
            firsts_of: those of the categories of which no more is wanted than the first message of
                each stream.
        """


@dataclass(frozen=True, slots=True)
class Rows:
    """Reads columns of categories from messages that are there.

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
            wanted &= ~category.isin(*firsts_of) | (F.col("position") == 0)
        return self.messages.where(wanted).select(*columns)


def number_of(name: Column, names: Sequence[str | int]) -> Column:
    """Return where a name is in a list, from 0; null if it is not in it."""
    number = F.lit(None).cast("int")
    for n, one in enumerate(names):
        number = F.when(name == one, n).otherwise(number)
    return number


# The columns of findings, in the order in which they are put out.
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

# The same of a judged row, of which there may be several.
FOUND = ("findings", *FINDING[1:])

Counts = dict[str, int]


class Job(Protocol):
    """A job that judges groups of messages."""

    name: str

    def rows(self, read: Read) -> DataFrame:
        """Return the messages to judge, with the ``group`` that each belongs to."""

    def judge(self, rows: DataFrame) -> DataFrame:
        """Return the rows, and what is found of each.

        Added are the columns of `FOUND` that they have not, of which ``findings`` is empty for what
        needs no attention; ``is_open``, whether it may be judged otherwise once a consumer has gone
        on; and whatever is counted.

        Args:
            rows: what `rows` gave, marked with how far the consumers are.
        """

    def counts(self) -> Mapping[str, Column]:
        """Return what each judged row adds to each count: a number, or null for nothing."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What a job found.

    Attributes:
        counts: the sums, by their names.
        findings: the rows that need attention, in Spark's memory until they are let go.
    """

    counts: Counts
    findings: DataFrame


def run(job: Job, rows: DataFrame, progress: Progress) -> Judged:
    """Judge all rows, in one pass over them.

    Args:
        job: the job.
        rows: what its `rows` gave.
        progress: how far the consumers are.
    """
    rows, counted = judged(job, progress.marked(rows))
    findings = findings_of(rows).persist()
    findings.count()
    return Judged(counted(), findings)


def judged(
    job: Job, rows: DataFrame, is_past: Column | None = None
) -> tuple[DataFrame, Callable[[], Counts]]:
    """Judge rows; return them, and a function that gives the counts once they were looked at.

    Args:
        job: the job.
        rows: what its `rows` gave, marked with how far the consumers are.
        is_past: whether a row is taken off the counts.
    """
    observed, counts = Observation(), job.counts()

    def added(number: Column) -> Column:
        return number if is_past is None else F.when(is_past, -number).otherwise(number)

    found = job.judge(rows).observe(
        observed, *(F.sum(added(number)).alias(name) for name, number in counts.items())
    )
    return found, lambda: {name: int(observed.get[name] or 0) for name in counts}


def findings_of(judged: DataFrame) -> DataFrame:
    """Return what needs attention, of rows that were judged."""
    return judged.withColumn("finding", F.explode("findings")).select(*FINDING)


def found(*findings: Column) -> Column:
    """Return those of several findings of a row that are not null."""
    return F.array_compact(F.array(*findings))


def together(findings: Sequence[DataFrame]) -> DataFrame:
    """Return what several jobs found as one."""
    return reduce(DataFrame.unionByName, findings)
