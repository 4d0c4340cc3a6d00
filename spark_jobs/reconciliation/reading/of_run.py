"""What a run reads from: the store and an archive."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.archive.archive_folder import Archive
from spark_jobs.common.declaration import Declaration
from spark_jobs.reconciliation.reading.categories import Categories
from spark_jobs.reconciliation.reading.fingerprinting import (
    Fingerprinting,
    ServerFingerprints,
    SparkFingerprints,
)
from spark_jobs.reconciliation.reading.union import Union
from spark_jobs.reconciliation.run import Run, app_dir, is_here
from spark_jobs.snapshot.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Reading:
    """What a run reads from.

    Attributes:
        run: the run.
        snapshot: what is read of the store.
        spark: the session.
        archive: an archive that is read too; None without one.
        until: the global position to read each category up to; others are read to their end.
    """

    run: Run
    snapshot: Snapshot
    spark: SparkSession
    archive: Archive | None = None
    until: Mapping[str, int] = field(default_factory=dict)

    def __call__(
        self, after: Mapping[str, int] | None = None, *, is_few: bool = False
    ) -> Categories | Union:
        """Return what reads columns of categories."""
        after = after or {}
        if self.archive is None:
            return self.stored(after, is_few=is_few)
        behind = {name: max(one, after.get(name, 0)) for name, one in self.archive.after.items()}
        return Union(
            self.spark,
            self.archive,
            self._declaration,
            self.stored({**after, **behind}),
            self.stored(after),
            after,
        )

    def stored(self, after: Mapping[str, int] | None = None, *, is_few: bool = False) -> Categories:
        """Return what reads columns of categories from the store alone."""
        return Categories(
            self.spark,
            self.snapshot,
            self._declaration,
            after or {},
            self.until,
            is_here=is_few and is_here(self.run),
        )

    def archived(self) -> DataFrame | None:
        """Return the messages in the archive; None without one."""
        read = self()
        return read.archived() if isinstance(read, Union) else None

    @property
    def _declaration(self) -> Declaration:
        return Declaration.of(self.run.component)

    @property
    def server_can_hash(self) -> bool:
        """Whether the server can make the fingerprints of messages in the store."""
        return not self._declaration.by_function

    def fingerprints(
        self,
        seed: int,
        after: Mapping[str, int] | None = None,
        *,
        is_of_server: bool,
        is_few: bool = False,
    ) -> Fingerprinting:
        """Return what reads messages as fingerprints that are kept."""
        component = self.run.component
        if is_of_server:
            stored = self.stored(after, is_few=is_few)
            return ServerFingerprints(stored, component, None, seed)
        return SparkFingerprints(
            self(after, is_few=is_few),
            self.stored(is_few=True).at,
            self.spark.createDataFrame,
            component,
            self.run.app,
            app_dir(self.run),
            seed,
        )
