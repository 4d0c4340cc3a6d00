"""The persistence of violations, for a follower of the store.

For each violation, a follower records since when it has existed and whether it was reported. A
violation is reported once it has persisted for the grace, and reported as mended if it disappears
after that. One that disappears before is never reported.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from spark_jobs.common import files as data_files
from spark_jobs.common.result import Finding
from spark_jobs.common.timestamps import from_micros
from spark_jobs.findings.accepted import finding_of
from spark_jobs.snapshot.progress import Progress
from spark_jobs.state.folder import LastingViolations, not_here

# A message has each kind of violation at most once.
_KEY = ["finding", "global_position"]


@dataclass(frozen=True, slots=True)
class ViolationEvent:
    """A violation that has persisted for the grace, or was settled after it was reported.

    Attributes:
        is_mended: whether it was settled: mended, or accepted.
        time: when a round found that, in UTC.
        since: since when it has existed, in UTC.
        violation: the message and what is wrong with it.
        is_accepted: whether it was accepted, and not mended.
    """

    is_mended: bool
    time: datetime
    since: datetime
    violation: Finding
    is_accepted: bool = False


def noted(
    findings: DataFrame,
    before: DataFrame | None,
    progress: Progress,
    now: datetime,
    grace: timedelta,
) -> DataFrame:
    """Record since when each violation has existed.

    If the age of a message decides whether it was read, a command is missing or unhandled since it
    was stored, so the grace is over with the verdict.
    """
    first_seen = F.when(_is_by_age(progress), F.least("time", F.lit(now))).otherwise(F.lit(now))
    if before is None:
        known = findings.withColumn("since", first_seen).withColumn("was_reported", F.lit(False))
    else:
        last = before.select(
            *_KEY, F.col("since").alias("seen"), F.col("is_reported").alias("reported")
        )
        known = (
            findings.join(last, _KEY, "left")
            .withColumn("since", F.coalesce("seen", first_seen))
            .withColumn("was_reported", F.coalesce("reported", F.lit(False)))
            .drop("seen", "reported")
        )
    is_due = F.col("since") <= F.lit(now - grace)
    return known.withColumn("is_reported", F.col("was_reported") | is_due)


def _is_by_age(progress: Progress) -> Column:
    by_age = [name for name, one in progress.consumed.items() if one.position is None]
    waits = {"missing": "command_category", "unhandled": "reservation_category"}
    found = F.lit(False)
    for finding, category in waits.items():
        found |= (F.col("finding") == finding) & F.col(category).isin(*by_age)
    return F.coalesce(found, F.lit(False))


def due(noted: DataFrame, before: DataFrame | None) -> DataFrame:
    """Return what to report, in the order of the log: persisting violations, then settled ones."""
    rows = _reported(noted.where("is_reported AND NOT was_reported"), is_mended=False)
    if before is not None:
        gone = before.where("is_reported").join(noted, _KEY, "left_anti")
        rows = rows.unionByName(_reported(gone, is_mended=True))
    return rows.orderBy("is_mended", "global_position", "finding")


def _reported(rows: DataFrame, *, is_mended: bool) -> DataFrame:
    micros = {name: F.unix_micros(name) for name in ("time", "since")}
    names = [field.name for field in fields(Finding)]
    return rows.withColumns({**micros, "is_mended": F.lit(is_mended)}).select(
        *names, "since", "is_mended"
    )


def events(folder: Path, now: datetime, accepted: Collection[str] = ()) -> Iterator[ViolationEvent]:
    """Yield what is due from the files of a folder, in their order."""
    files = [pq.ParquetFile(path) for path in data_files.paths(folder)]
    if not files:
        raise not_here(folder)
    for batch in chain.from_iterable(file.iter_batches(batch_size=1_000) for file in files):
        for row in batch.to_pylist():
            violation, is_mended = finding_of(row), row["is_mended"]
            yield ViolationEvent(
                is_mended=is_mended,
                time=now,
                since=from_micros(row["since"]),
                violation=violation,
                is_accepted=is_mended and violation.id in accepted,
            )


def summed_up(noted: DataFrame, folder: str) -> LastingViolations:
    """Return the summary for the state's manifest."""
    waiting = F.min(F.when(~F.col("is_reported"), F.unix_micros("since")))
    rows = (
        noted.groupBy("finding")
        .agg(F.count(F.when(F.col("is_reported"), 1)).alias("reported"), waiting.alias("waits"))
        .collect()
    )
    waits = [row["waits"] for row in rows if row["waits"] is not None]
    return LastingViolations(
        folder,
        {row["finding"]: row["reported"] for row in rows if row["reported"]},
        from_micros(min(waits)) if waits else None,
    )
