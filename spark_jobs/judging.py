"""What jobs that give every message a verdict have in common.

Such a job brings messages together in groups, judges each group by itself, and counts verdicts, so
that what it found of one part of the groups and of another can be added up. That is what lets a run
look only at the groups that something has changed in (`spark_jobs.incremental`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Protocol

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from spark_jobs.progress import Progress


class Read(Protocol):
    """Reads columns of categories; what `spark_jobs.categories` gives, or a part of it."""

    def __call__(
        self, categories: Sequence[str], columns: Sequence[str], *, firsts_of: Sequence[str] = ()
    ) -> DataFrame:
        """Return them in one DataFrame.

        Args:
            categories: their names.
            columns: of `spark_jobs.columns`.
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

Counts = dict[str, int]


class Job(Protocol):
    """A job that judges groups of messages."""

    name: str

    def rows(self, read: Read) -> DataFrame:
        """Return the messages to judge, with the ``group`` that each belongs to."""

    def judge(self, rows: DataFrame, progress: Progress) -> DataFrame:
        """Return what is found of each row.

        Beside ``group`` and the columns of `FINDING`, in which ``finding`` is null for what needs
        no attention, there is ``is_open``: whether it may be judged otherwise once a consumer has
        gone on; and whatever is counted.
        """

    def counts(self) -> Mapping[str, Column]:
        """Return what is counted over judged rows, each under a name; they are sums over groups."""


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
    kept, counted = judged(job, rows, progress)
    findings = findings_of(kept).persist()
    findings.count()
    return Judged(counted(), findings)


def judged(job: Job, rows: DataFrame, progress: Progress) -> tuple[DataFrame, Callable[[], Counts]]:
    """Return what is found of rows that need attention or are open, and a function for the counts.

    The function gives what was counted of all rows, once something was done with what is found.
    """
    observed, counts = Observation(), job.counts()
    found = (
        job.judge(rows, progress)
        .observe(observed, *(column.alias(name) for name, column in counts.items()))
        .where(F.col("finding").isNotNull() | F.col("is_open"))
        .select("group", *FINDING, "is_open")
    )
    return found, lambda: {name: int(observed.get.get(name) or 0) for name in counts}


def counted(job: Job, rows: DataFrame, progress: Progress) -> Counts:
    """Return what is counted of all rows, and nothing else."""
    counts = job.counts()
    sums = [column.alias(name) for name, column in counts.items()]
    row = job.judge(rows, progress).agg(*sums).collect()[0]
    return {name: int(row[name] or 0) for name in counts}


def findings_of(kept: DataFrame) -> DataFrame:
    """Return those rows that need attention, of what was found."""
    return kept.where(F.col("finding").isNotNull())


def together(findings: Sequence[DataFrame]) -> DataFrame:
    """Return what several jobs found as one."""
    columns = [one.select(*FINDING) for one in findings]
    return reduce(DataFrame.unionByName, columns)
