"""Store the classes of Spark's Java process in the form in which Java loads them fastest.

A small job spends most of its time on reading, checking and linking about 20,000 classes. Java can
write the classes that a process has used to a file, and share them with later processes (class data
sharing, JEP 350). It ignores the file if its version or the jars have changed.
"""

import tempfile
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from reservation.component import Component
from reservation.context import Context
from reservation.declaration.key import Key
from reservation.declaration.table import declarations
from spark_jobs.analysis.commands import CommandsJob
from spark_jobs.analysis.effects import EffectsJob
from spark_jobs.analysis.sketches import grouping
from spark_jobs.analysis.verdicts import fingerprints
from spark_jobs.analysis.verdicts.judging import Rows
from spark_jobs.analysis.verdicts.prefilter import Prefilter, PrefilterInput
from spark_jobs.common.errors import SparkJobError
from spark_jobs.reconciliation import accepted, reconcile
from spark_jobs.reconciliation.full_run import FullRun
from spark_jobs.session import settings
from spark_jobs.session.java import kept_classes
from spark_jobs.session.session import spark_session
from spark_jobs.snapshot.progress import Consumed, Progress
from spark_jobs.source.columns import TYPES, schema
from spark_jobs.source.options import arrow_schema

# How long Java may take to write the file, in seconds.
_PATIENCE = 600


def keep() -> Path:
    """Let a Java process do what the jobs do, and store the classes that it used."""
    kept = kept_classes()
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".classes-", dir=kept.parent) as folder:
            beside = Path(folder) / kept.name
            java = f"spark.driver.extraJavaOptions=-XX:ArchiveClassesAtExit={beside}"
            with spark_session("", conf=[java]) as spark:
                _rehearse(spark)
                # There is no other way to wait for it than by what PySpark keeps to itself.
                gateway = spark.sparkContext._gateway
            assert gateway is not None  # noqa: S101  it is there while a session is
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait(_PATIENCE)
            beside.replace(kept)
    except OSError as error:
        raise SparkJobError(f"{kept} cannot be written: {error.strerror}") from error
    return kept


@dataclass
class _Rehearse:
    entity_id: str
    key: str


def _nothing(command: _Rehearse, entity: None, context: Context) -> None:
    """Handle what is never read."""


def _rehearse(spark: SparkSession) -> None:
    """Do what a job does, with one message and no database."""
    component = Component("rehearsal", id="entity_id")
    declared = declarations(component)
    component.handle(_Rehearse, key=Key("key", into="rehearsed", per=None))(_nothing)
    table = _message(category=declared.command_category, key_category="rehearsed")
    messages = spark.createDataFrame(table).mapInArrow(grouping.as_they_are, schema(TYPES))

    read = Rows(messages)
    progress = Progress({declared.command_category: Consumed(1, letters=[2])})
    jobs = (CommandsJob(component, "", None), EffectsJob(component, "", None))
    made = fingerprints.of_messages(read, component, progress, "", None)
    seen = partial(grouping.summed, made.mapInArrow, parts=1)
    of_all = PrefilterInput(seen, lambda _: read, lambda _: read)
    # As a large store is judged, and as a small one.
    for plans in (nullcontext(), settings.having(spark, settings.OF_FEW_ROWS)):
        with plans:
            for prefilter in (None, Prefilter(jobs, of_all, progress)):
                whole = FullRun(read, progress, prefilter)
                for job in jobs:
                    whole.take(job)
                reconcile.samples(accepted.identified(whole.findings(), component.name))


def _message(**values: str) -> pa.Table:
    """Return a table with one message in it, all columns of which have a value."""
    of_types = {"string": "a", "bigint": 1, "boolean": False, "timestamp": datetime.now(UTC)}
    row = {name: values.get(name, of_types[type_]) for name, type_ in TYPES.items()}
    return pa.Table.from_pylist([row], arrow_schema(TYPES))
