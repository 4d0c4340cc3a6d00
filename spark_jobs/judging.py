"""What jobs that give every message a verdict have in common.

Such a job brings messages together in groups, judges each group by itself, and counts verdicts, so
that what it found of one part of the groups and of another can be added up. That is what lets a run
look only at the groups that something has changed in (`spark_jobs.incremental`).
"""

from collections.abc import Mapping, Sequence
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
        kept: the judged rows that need attention or are open, in Spark's memory until they are let
            go.
    """

    counts: Counts
    kept: DataFrame

    @property
    def findings(self) -> DataFrame:
        """The rows that need attention, with their groups."""
        return self.kept.where(F.col("finding").isNotNull()).select("group", *FINDING)

    @property
    def open_groups(self) -> DataFrame:
        """The groups that may be judged otherwise later."""
        return self.kept.where("is_open").select("group").distinct()


def run(job: Job, rows: DataFrame, progress: Progress, *, with_open: bool = False) -> Judged:
    """Judge all rows, in one pass over them.

    Args:
        job: the job.
        rows: what its `rows` gave.
        progress: how far the consumers are.
        with_open: whether the open groups are wanted as well.
    """
    observed, counts = Observation(), job.counts()
    wanted = F.col("finding").isNotNull()
    if with_open:
        wanted |= F.col("is_open")
    kept = (
        job.judge(rows, progress)
        .observe(observed, *(column.alias(name) for name, column in counts.items()))
        .where(wanted)
        .select("group", *FINDING, "is_open")
        .persist()
    )
    kept.count()
    found = observed.get
    return Judged({name: int(found.get(name) or 0) for name in counts}, kept)


def together(findings: Sequence[DataFrame]) -> DataFrame:
    """Return what several jobs found as one."""
    columns = [one.select(*FINDING) for one in findings]
    return reduce(DataFrame.unionByName, columns)


class Whole:
    """A run over everything."""

    def __init__(self, read: Read, progress: Progress) -> None:
        """Begin.

        Args:
            read: reads the categories.
            progress: how far the consumers are.
        """
        self._read = read
        self._progress = progress
        self._judged: list[Judged] = []

    def take(self, job: Job) -> Counts:
        """Judge all of a job's rows; return what was counted."""
        judged = run(job, self.rows(job), self._progress)
        self._judged.append(judged)
        return judged.counts

    def findings(self) -> DataFrame:
        """Return all rows that need attention, of the jobs that were taken."""
        return together([one.findings for one in self._judged])

    def rows(self, job: Job) -> DataFrame:
        """Return all rows of a job."""
        return job.rows(self._read)

    def commit(self) -> None:
        """Let go of what was kept."""
        for one in self._judged:
            one.kept.unpersist()
