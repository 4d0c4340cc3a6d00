"""Copy old messages to Parquet, by category and day, and compare them with the store.

Of each category the first messages are archived, in the order of their global positions, as long as
they are older than a date and the consumer has read them. So an archive has each category up to one
message, and the store is read from there on (`spark_jobs.archive.union`).

What was written is read back, counted and hashed. It becomes part of the archive only if the server
counts and hashes the same of its own rows, under the same snapshot.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from reservation.component import Component
from reservation.declaration.table import declarations
from spark_jobs.archive import archive_folder
from spark_jobs.archive.archive_folder import Archive
from spark_jobs.archive.manifest import ArchivePart, DayChecksums
from spark_jobs.archive.union import of_one_run
from spark_jobs.common.declaration import Declaration, categories_of
from spark_jobs.common.timestamps import hours_since_epoch
from spark_jobs.reconcile import working
from spark_jobs.run import Run
from spark_jobs.snapshot import checksums
from spark_jobs.snapshot.categories import Categories
from spark_jobs.snapshot.checksums import Checksums
from spark_jobs.snapshot.snapshot import Snapshot
from spark_jobs.source.columns import CategoryQuery


@dataclass(frozen=True, slots=True)
class ArchivedCategory:
    """A category's archived part.

    Attributes:
        category: its name.
        added: how many messages this run has added.
        messages: how many there are in all.
        last: the global position of the last one; 0 if there is none.
    """

    category: str
    added: int
    messages: int
    last: int


@dataclass(frozen=True, slots=True)
class ArchiveResult:
    """An archive run's result.

    Attributes:
        component: whose messages they are.
        time: when the snapshot was taken that was read, in UTC.
        before: the time that all added messages are older than, in UTC.
        categories: what is archived of each category.
        differences: the differences between archive and store; if there are any, nothing is added.
        unreadable: by category, the global positions of some added messages that cannot be read,
            of which the archive holds no data, metadata or time.
        removable: whether messages may be removed from the store: all is verified, and consumers
            keep their positions there.
        snapshot_held: how long the snapshot was held, which keeps VACUUM from cleaning up.
    """

    component: str
    time: datetime
    before: datetime
    categories: list[ArchivedCategory]
    differences: list[str]
    removable: bool
    snapshot_held: timedelta
    unreadable: Mapping[str, Sequence[int]] = field(default_factory=dict)


def archive(
    run: Run,
    folder: Path,
    before: datetime,
    watch: Callable[[SparkSession], AbstractContextManager[None]] | None = None,
) -> ArchiveResult:
    """Archive the messages of a component's categories that are older than a date."""
    archive_folder.refuse_others(folder)
    with working(run, watch) as (snapshot, spark):
        return in_session(run.component, folder, before, snapshot, spark)


def in_session(
    component: Component,
    folder: Path,
    before: datetime,
    snapshot: Snapshot,
    spark: SparkSession,
) -> ArchiveResult:
    """Archive in an open session, under an open snapshot.

    The snapshot is released once the store was read, before what was written is read back.
    """
    declaration = Declaration.of(component)
    with archive_folder.open_archive(folder, component.name, declaration.to_json()) as (
        archive,
        lock,
    ):
        archive.check(snapshot, declarations(component).command_category)
        lasts = _lasts(archive, component, before, snapshot)
        differences = [f"{fault.path} {fault.what}" for fault in archive.faults()]
        added: dict[str, ArchivePart] = {}
        unreadable: dict[str, Sequence[int]] = {}
        if lasts and not differences:
            until = {category: position for category, (position, _) in lasts.items()}
            written = archive.begin(lock)
            write(spark, snapshot, declaration, written, after=archive.after, until=until)
            files = archive_folder.files_in(written)
            expected = {
                category: snapshot.checksums(
                    CategoryQuery(category, ["category", *checksums.COLUMNS], declaration),
                    archive.after.get(category, 0) + 1,
                    last,
                )
                for category, last in until.items()
            }
            given = [
                one
                for category, last in until.items()
                for one in snapshot.given_data(
                    component.name, category, archive.after.get(category, 0) + 1, last
                )
            ]
            snapshot.release()
            differences = verified(spark, written, expected)
            if not differences:
                added = _parts(expected, lasts)
                unreadable = {
                    category: sorted(total.unreadable)[:10]
                    for category, days in expected.items()
                    if (total := checksums.total(days.values())).unreadable
                }
                archive.put(
                    written,
                    files,
                    time=snapshot.time,
                    before=before,
                    categories=added,
                    store=snapshot.store,
                    given=given,
                )
        return ArchiveResult(
            component.name,
            snapshot.time,
            before,
            [
                ArchivedCategory(
                    category,
                    added[category].kept.count if category in added else 0,
                    archive.counts.get(category, 0),
                    archive.head(category)[0],
                )
                for category in categories_of(component)
            ],
            differences,
            removable=not differences and snapshot.has_positions and bool(archive.runs),
            snapshot_held=snapshot.release(),
            unreadable=unreadable,
        )


def _lasts(
    archive: Archive, component: Component, before: datetime, snapshot: Snapshot
) -> dict[str, tuple[int, str]]:
    """Return the last message to archive of each category that has more messages to archive."""
    progress, found = snapshot.progress(component).consumed, {}
    for category in categories_of(component):
        consumed = progress.get(category)
        up_to = None if consumed is None else consumed.position
        was_read = before if consumed is None or consumed.before is None else consumed.before
        last = snapshot.older(
            category, min(before, was_read), after=archive.head(category)[0], up_to=up_to
        )
        if last is not None:
            found[category] = last
    return found


def write(
    spark: SparkSession,
    snapshot: Snapshot,
    declaration: Declaration,
    folder: Path,
    *,
    after: Mapping[str, int],
    until: Mapping[str, int],
) -> None:
    """Write a part of each of some categories to a new folder."""
    read = Categories(spark, snapshot, declaration, after, until)
    day = F.date_from_unix_date(F.floor(hours_since_epoch("time") / 24).cast("int"))
    (
        read(list(until), ["category", *checksums.COLUMNS])
        .withColumn("day", day)
        .sortWithinPartitions("category", "day", "global_position")
        .write.partitionBy("category", "day")
        .option("compression", "zstd")
        .parquet(str(folder))
    )


def verified(
    spark: SparkSession, folder: Path, expected: Mapping[str, Mapping[str, Checksums]]
) -> list[str]:
    """Read back what was written; return how it differs from the server's checksums."""
    wanted = {
        (category, day): sums for category, days in expected.items() for day, sums in days.items()
    }
    found = checksums.of_rows(of_one_run(spark, str(folder)))
    return [
        f"{category} of {day}: {_in_words(wanted.get(key))} in the store, "
        f"{_in_words(found.get(key))} in the archive"
        for key in sorted(wanted.keys() | found.keys())
        if wanted.get(key) != found.get(key)
        for category, day in [key]
    ]


def _in_words(sums: Checksums | None) -> str:
    return "nothing" if sums is None else f"{sums.count:,} messages with the hash {sums.hash}"


def _parts(
    expected: Mapping[str, Mapping[str, Checksums]], lasts: Mapping[str, tuple[int, str]]
) -> dict[str, ArchivePart]:
    found = {}
    for category, days in expected.items():
        whole = checksums.total(days.values())
        found[category] = ArchivePart(
            first=whole.first,
            last=whole.last,
            last_id=lasts[category][1],
            kept=DayChecksums(whole.count, whole.hash),
            days={day: DayChecksums(sums.count, sums.hash) for day, sums in sorted(days.items())},
        )
    return found
