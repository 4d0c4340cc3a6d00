"""A run over everything."""

from functools import partial

from pyspark.sql import DataFrame
from pyspark.storagelevel import StorageLevel

from spark_jobs.analysis.verdicts import judging, prefilter
from spark_jobs.analysis.verdicts.judging import Counts, Judged, Read
from spark_jobs.analysis.verdicts.prefilter import PrefilterInput, PrefilterJob
from spark_jobs.reconciliation.reading import lookup
from spark_jobs.snapshot.progress import Progress


class FullRun:
    """A run over everything.

    Attributes:
        kept: the DataFrames that Spark caches for it.
    """

    def __init__(
        self, read: Read, progress: Progress, prefiltered: PrefilterInput | None = None
    ) -> None:
        """Begin.

        Args:
            read: reads the categories.
            progress: how far the consumers are.
            prefiltered: the same messages with their fingerprints; None to judge all row by row.
        """
        self._read = read
        self._progress = progress
        self._prefiltered = prefiltered
        self._judged: dict[str, Judged] = {}
        self.kept: list[DataFrame] = []
        if prefiltered is not None:
            # To disk, so that a large store takes no more memory than a small one.
            self.kept.append(prefiltered.fingerprints.persist(StorageLevel.DISK_ONLY))

    def take(self, job: PrefilterJob) -> Counts:
        """Judge all of a job's rows; return what was counted."""
        if self._prefiltered is None:
            judged = judging.run(
                job, self.rows(job), self._progress, partial(lookup.at, self._read)
            )
        else:
            judged = prefilter.run(job, self._prefiltered, self._progress)
        self._judged[job.name] = judged
        self.kept.append(judged.findings)
        return judged.counts

    def findings(self) -> DataFrame:
        """Return all rows that need attention, of the jobs that were taken."""
        return judging.combined([one.findings for _, one in sorted(self._judged.items())])

    def rows(self, job: PrefilterJob) -> DataFrame:
        """Return all rows of a job."""
        return job.rows(self._read)
