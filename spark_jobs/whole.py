"""A run over everything."""

from pyspark.sql import DataFrame

from spark_jobs import judging, sifting
from spark_jobs.judging import Counts, Judged, Read
from spark_jobs.progress import Progress
from spark_jobs.sifting import At, Sieve


class Whole:
    """A run over everything."""

    def __init__(self, read: Read, progress: Progress, at: At | None = None) -> None:
        """Begin.

        Args:
            read: reads the categories.
            progress: how far the consumers are.
            at: gives what reads some messages of them; without it all are judged row by row.
        """
        self._read = read
        self._progress = progress
        self._at = at
        self._judged: list[Judged] = []

    def take(self, job: Sieve) -> Counts:
        """Judge all of a job's rows; return what was counted."""
        if self._at is None:
            judged = judging.run(job, self.rows(job), self._progress)
        else:
            judged = sifting.run(job, self._read, self._at, self._progress)
        self._judged.append(judged)
        return judged.counts

    def findings(self) -> DataFrame:
        """Return all rows that need attention, of the jobs that were taken."""
        return judging.together([one.findings for one in self._judged])

    def rows(self, job: Sieve) -> DataFrame:
        """Return all rows of a job."""
        return job.rows(self._read)

    def commit(self) -> None:
        """Let go of what was kept."""
        for one in self._judged:
            one.kept.unpersist()
