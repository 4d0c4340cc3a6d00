"""A run over everything."""

from pyspark.sql import DataFrame
from pyspark.storagelevel import StorageLevel

from spark_jobs.analysis import judging, prefilter
from spark_jobs.analysis.judging import Counts, Judged, Read
from spark_jobs.analysis.prefilter import PrefilterInput, PrefilterJob
from spark_jobs.snapshot.progress import Progress


class FullRun:
    """A run over everything.

    Attributes:
        kept: what Spark keeps for it.
    """

    def __init__(
        self, read: Read, progress: Progress, sifted: PrefilterInput | None = None
    ) -> None:
        """Begin.

        Args:
            read: reads the categories.
            progress: how far the consumers are.
            sifted: the same messages by their signs; without it all are judged row by row.
        """
        self._read = read
        self._progress = progress
        self._sifted = sifted
        self._judged: dict[str, Judged] = {}
        self.kept: list[DataFrame] = []
        if sifted is not None:
            # To disk, so that a large store takes no more memory than a small one.
            self.kept.append(sifted.signs.persist(StorageLevel.DISK_ONLY))

    def take(self, job: PrefilterJob) -> Counts:
        """Judge all of a job's rows; return what was counted."""
        if self._sifted is None:
            judged = judging.run(job, self.rows(job), self._progress)
        else:
            judged = prefilter.run(job, self._sifted, self._progress)
        self._judged[job.name] = judged
        self.kept.append(judged.findings)
        return judged.counts

    def findings(self) -> DataFrame:
        """Return all rows that need attention, of the jobs that were taken."""
        return judging.together([one.findings for _, one in sorted(self._judged.items())])

    def rows(self, job: PrefilterJob) -> DataFrame:
        """Return all rows of a job."""
        return job.rows(self._read)
