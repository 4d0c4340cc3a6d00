"""Store the classes of Spark's Java process; see `spark_jobs.session.classes`."""

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from reservation.component import Component
from reservation.context import Context
from reservation.declaration.key import Key
from reservation.declaration.table import declarations
from spark_jobs import fold
from spark_jobs.common.errors import SparkJobError
from spark_jobs.common.result import Finding
from spark_jobs.facts.codes import MessageKind
from spark_jobs.facts.query import FACT
from spark_jobs.facts.reader import FOLDED, Facts
from spark_jobs.findings import accepted
from spark_jobs.findings.described import described
from spark_jobs.session import classes, settings
from spark_jobs.session.java import require_java
from spark_jobs.session.session import spark_session
from spark_jobs.snapshot.progress import Consumed, Progress
from spark_jobs.source.columns import TYPES, schema
from spark_jobs.source.options import arrow_schema
from spark_jobs.verdicts import verdicts
from spark_jobs.verdicts.meaning import Meanings
from spark_jobs.verdicts.rows import Rows

# How long storing them in the background may take, in seconds.
_PATIENCE = 600


def keep(lock: int | None = None) -> Path:
    """Let a Java process do what the jobs do, and store the classes that it used."""
    require_java()
    try:
        with classes.writing(lock) as file:
            option = f"spark.driver.extraJavaOptions=-XX:ArchiveClassesAtExit={file}"
            with spark_session("", conf=[option]) as spark:
                rehearse(spark)
    except OSError as error:
        raise SparkJobError(f"{classes.stored()} cannot be written: {error.strerror}") from error
    return classes.stored()


def _keep_in_background(lock: int, awaited: int) -> None:
    """Do so after the end of the process that asked for it, when no other has work to do."""
    while os.read(awaited, 1):
        pass
    os.nice(19)
    signal.alarm(_PATIENCE)  # ends this process, and Java with it
    keep(lock)


@dataclass
class _Rehearse:
    entity_id: str
    key: str


def _nothing(command: _Rehearse, entity: None, context: Context) -> None:
    """Handle what is never read."""


@dataclass(frozen=True, slots=True)
class _Rehearsed(Facts):
    """Facts that are read from nowhere: of a key with two reservations, and of a lost event."""

    @property
    def number(self) -> int:
        return 2

    def all(
        self, columns: Sequence[str] = FOLDED, after: Mapping[str, int] | None = None
    ) -> DataFrame:
        """Return them."""
        del after
        rows = [
            _fact(1, MessageKind.COMMAND, key=1, digest=1),
            _fact(2, MessageKind.COPY, key=1, digest=1, cause=1),
            _fact(3, MessageKind.COPY, key=1, digest=1, cause=1),
            _fact(4, MessageKind.EVENT, cause=2, kind=1),
            _fact(6, MessageKind.EVENT, cause=5, kind=1),
        ]
        return _read(self.spark, rows, {name: FACT[name] for name in columns})

    def at(
        self, positions: DataFrame, columns: Sequence[str] = FOLDED, *, required: bool = False
    ) -> DataFrame:
        """Return them, wherever they are."""
        del required
        return self.all(columns).join(positions, "position", "left_semi")


def rehearse(spark: SparkSession) -> list[Finding]:
    """Do what a job does, with a few messages and no database; return what it finds."""
    found: list[Finding] = []
    component = Component("rehearsal", id="entity_id")
    component.handle(_Rehearse, key=Key("key", into="rehearsed", per=None))(_nothing)
    commands = declarations(component).command_category
    progress = Progress({commands: Consumed(1, letters=[2])})

    def lookup(
        positions: DataFrame, categories: Sequence[str], columns: Sequence[str]
    ) -> DataFrame:
        del categories
        rows = [_message(at) for at in (1, 2, 3, 4, 6)]
        found = _read(spark, rows, {name: TYPES[name] for name in columns})
        return found.join(positions, "global_position", "left_semi").select(*columns)

    facts = _Rehearsed(spark, None, component, "", None, 1, progress)  # type: ignore[arg-type]
    rows = Rows(facts, lookup, Meanings(commands, ["rehearsed"], "", None))
    # As a large store is judged, and as a small one.
    for plans in (nullcontext(), settings.having(spark, settings.SMALL_PLAN)):
        with plans:
            judged = verdicts.judge(fold.fold(facts.all(), facts.number), rows, progress)
            findings = described(judged.findings, lookup, component, "", None)
            found = accepted.samples(accepted.identified(findings, component.name))
    return found


def _fact(position: int, what: MessageKind, **values: int) -> dict[str, int | None]:
    return {**dict.fromkeys(FACT), "position": position, "code": int(what), "place": 0, **values}


def _message(at: int) -> dict[str, object]:
    of_types = {"string": "a", "bigint": at, "boolean": False, "timestamp": datetime.now(UTC)}
    return {name: of_types[type_] for name, type_ in TYPES.items()}


def _read(
    spark: SparkSession, rows: Sequence[Mapping[str, object]], types: Mapping[str, str]
) -> DataFrame:
    """Return rows that have gone through a Python worker."""
    table = pa.Table.from_pylist([{name: row[name] for name in types} for row in rows])
    frame = spark.createDataFrame(table.cast(arrow_schema(types)))
    return frame.mapInArrow(_as_they_are, schema(types))


def _as_they_are(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


if __name__ == "__main__":
    _keep_in_background(*map(int, sys.argv[1:]))
