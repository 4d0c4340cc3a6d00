"""Reconciling a component: its categories are read, judged and counted under one snapshot."""

import dataclasses
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reservation.component import Component
from reservation.errors import DeclarationError
from spark_jobs.errors import SparkJobError
from spark_jobs.session import spark_session
from spark_jobs.snapshot import Snapshot, exported_snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_jobs.reconcile import Reconciled

# How many rows that need attention are shown; the Parquet output has all of them.
SAMPLES = 20


@dataclass(frozen=True, slots=True)
class Report:
    """What a reconciliation found.

    Attributes:
        component: the component's name.
        time: when the snapshot was taken, in UTC.
        categories: for each reservation category, what became of the commands reserved into it.
        initiations: the same for the commands that start their entity's stream, if there are any.
        samples: some of the rows that need attention.
    """

    component: str
    time: datetime
    categories: "list[Reconciled]"
    initiations: "list[Reconciled]"
    samples: list[dict[str, Any]]

    @property
    def in_order(self) -> bool:
        """Whether nothing was found that needs attention."""
        return all(one.in_order for one in (*self.categories, *self.initiations))


@dataclass(frozen=True, slots=True)
class _Reading:
    """One component's categories as DataFrames, all of one snapshot."""

    spark: "SparkSession"
    snapshot: Snapshot
    app: str
    app_dir: str

    def category(self, name: str) -> "DataFrame":
        return (
            self.spark.read.format("message_store")
            .option("category", name)
            .option("snapshot", self.snapshot.id)
            .option("partitions", max(2, self.spark.sparkContext.defaultParallelism))
            .option("app", self.app)
            .option("appDir", str(Path(self.app_dir).resolve()))
            .load()
        )


def reconcile_component(
    component: Component, app: str, app_dir: str, database_url: str, output: Path | None = None
) -> Report:
    """Hold a component's commands against their reservations.

    Args:
        component: the component.
        app: its app path, by which Spark's workers load it.
        app_dir: the folder that the app path starts from.
        database_url: a libpq URL or connection string; empty for libpq's own defaults.
        output: a folder that does not exist yet, for every row that needs attention as Parquet.

    Raises:
        DatabaseUnavailableError: the database can not be reached.
        SchemaError: it holds no message store.
        DeclarationError: the component reserves no command and initiates with none.
        SparkUnavailableError: Spark or Java is missing or too old.
        SparkJobError: the job did not come to its end, or the output can not be written.
    """
    if not (component.reservations or component.initiations):
        raise DeclarationError(
            f"The component {component.name!r} reserves no command and initiates with none, so "
            f"there is nothing to reconcile"
        )
    with (
        _put_in_place(output) as unfinished,
        exported_snapshot(database_url) as snapshot,
        spark_session(database_url) as spark,
    ):
        reading = _Reading(spark, snapshot, app, app_dir)
        try:
            return _reconcile(component, reading, unfinished)
        except Exception as error:
            raise SparkJobError(f"The Spark job failed: {_reason(error)}") from error


def _reconcile(component: Component, reading: _Reading, output: Path | None) -> Report:
    from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

    from spark_jobs import reconcile

    position = reading.snapshot.position(component.name, component.command_category)
    letters = reading.snapshot.letters(component.name, component.command_category)
    commands = reading.category(component.command_category)
    pairs = [
        (name, commands.where(F.col("key_category") == name), reading.category(name))
        for name in component.reservation_categories
    ]
    if component.reserves_within:
        name = component.command_category
        sent = commands.where(F.col("key_category") == name)
        pairs.append((name, sent.where(~F.col("is_copy")), sent.where(F.col("is_copy"))))
    if component.initiations:
        openings = commands.where(F.col("key_category") == component.name)
        streams = reconcile.initiated(openings, reading.category(component.name))
        pairs.append((component.name, openings, streams))

    counted, rows = [], []
    for name, some_commands, reservations in pairs:
        judged = reconcile.judge(some_commands, reservations, position, letters).persist()
        counted.append(reconcile.count_up(judged, component.command_category, name))
        rows.append(reconcile.findings(judged, component.command_category, name))
    needing_attention = rows[0]
    for more in rows[1:]:
        needing_attention = needing_attention.unionByName(more)
    samples = []
    if not all(one.in_order for one in counted):
        samples = [row.asDict() for row in needing_attention.limit(SAMPLES).collect()]
    if output is not None:
        needing_attention.coalesce(1).write.parquet(str(output))
    initiations = 1 if component.initiations else 0
    split = len(counted) - initiations
    return Report(component.name, reading.snapshot.time, counted[:split], counted[split:], samples)


@contextmanager
def _put_in_place(output: Path | None) -> Iterator[Path | None]:
    """Give a folder to write to that takes the output's place only once everything succeeded.

    Raises:
        SparkJobError: the output exists already, or can not be made.
    """
    if output is None:
        yield None
        return
    if output.exists():
        raise SparkJobError(f"The output folder {output} exists already; name one that does not")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    except OSError as error:
        raise SparkJobError(
            f"The output folder {output} can not be made: {error.strerror}"
        ) from error
    try:
        yield beside / "rows"
        (beside / "rows").rename(output)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _reason(error: Exception) -> str:
    """Return the line of an error that says what went wrong, out of Spark's many."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Failure)\b.*:", line)]
    told = (raised[-1:] or lines[:1] or [type(error).__name__])[0]
    return re.sub(r"^(psycopg|reservation)[\w.]*: ", "", told)


def as_json(report: Report) -> dict[str, Any]:
    """Return a report as the JSON object that ``--json`` prints."""
    return {
        "component": report.component,
        "time": report.time.isoformat(),
        "inOrder": report.in_order,
        "categories": [_camel_case(dataclasses.asdict(one)) for one in report.categories],
        "initiations": [_camel_case(dataclasses.asdict(one)) for one in report.initiations],
        "samples": [_camel_case(sample) for sample in report.samples],
    }


def _camel_case(values: dict[str, Any]) -> dict[str, Any]:
    from reservation.codec import camel_case

    return {camel_case(name): value for name, value in values.items()}
