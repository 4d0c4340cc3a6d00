"""A run over everything."""

from pyspark.sql import DataFrame

from spark_jobs.analysis.verdicts import judging
from spark_jobs.analysis.verdicts.judging import Counts, Judged, Messages
from spark_jobs.analysis.verdicts.prefilter import Prefilter, PrefilterJob
from spark_jobs.snapshot.progress import Progress


class FullRun:
    """A run over everything.

    Attributes:
        kept: the DataFrames that Spark caches for it.
    """

    def __init__(
        self,
        read: Messages,
        progress: Progress,
        prefilter: Prefilter | None = None,
    ) -> None:
        self._read = read
        self._progress = progress
        self._prefilter = prefilter
        self._judged: dict[str, Judged] = {}
        kept = None if prefilter is None else prefilter.sums.kept
        self.kept = [] if kept is None else [kept]

    def take(self, job: PrefilterJob) -> Counts:
        """Judge all of a job's rows; return what was counted."""
        if self._prefilter is None:
            judged = judging.run(job, self.rows(job), self._progress, self._read.at)
        else:
            judged = self._prefilter.judge(job)
        self._judged[job.name] = judged
        self.kept.append(judged.findings)
        return judged.counts

    def findings(self) -> DataFrame:
        """Return all rows that need attention, of the jobs that were taken."""
        return judging.combined([one.findings for _, one in sorted(self._judged.items())])

    def rows(self, job: PrefilterJob) -> DataFrame:
        """Return all rows of a job."""
        return job.rows(self._read)
