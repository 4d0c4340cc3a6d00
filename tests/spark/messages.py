"""Messages made by hand, read as the source would give them."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from reservation.component import Component
from reservation.messages.pseudo_event import PSEUDO_EVENT
from spark_jobs.analysis.commands import CommandsJob
from spark_jobs.analysis.effects import EffectsJob
from spark_jobs.analysis.sketches import grouping
from spark_jobs.analysis.verdicts import fingerprints
from spark_jobs.analysis.verdicts.judging import Read, Rows
from spark_jobs.analysis.verdicts.prefilter import Prefilter, PrefilterInput
from spark_jobs.reconciliation.full_run import FullRun
from spark_jobs.snapshot.progress import Progress

START = datetime(2026, 1, 1, tzinfo=UTC)

SCHEMA = (
    "category string, global_position bigint, position bigint, stream_name string, type string, "
    "id string, time timestamp, causation bigint, sender string, entity_id string, "
    "key_category string, key_stream string, is_copy boolean, version string, content string, "
    "data string, starts boolean, is_first boolean"
)
COLUMNS = [field.split()[0] for field in SCHEMA.split(", ")]


def message(global_position: int, stream_name: str, type_: str, **columns: Any) -> dict[str, Any]:
    """Return a message's row; what is not given follows from its global position, or is null."""
    made = {
        **dict.fromkeys(COLUMNS),
        "category": stream_name.partition("-")[0],
        "global_position": global_position,
        "position": 0,
        "stream_name": stream_name,
        "type": type_,
        "id": f"id{global_position}",
        "time": START + timedelta(seconds=global_position),
        "is_copy": False,
        "starts": type_ != PSEUDO_EVENT,
        **columns,
    }
    return {**made, "is_first": made["is_first"] or made["position"] == 0}


def reading(spark: SparkSession, messages: Sequence[dict[str, Any]]) -> Rows:
    """Return a reader of these messages, as a job reads a store."""
    rows = [tuple(message[name] for name in COLUMNS) for message in messages]
    return Rows(spark.createDataFrame(rows, SCHEMA))


def whole(
    spark: SparkSession,
    messages: Sequence[dict[str, Any]],
    component: Component,
    progress: Progress,
) -> FullRun:
    """Return a run over these messages that examines only suspicious ones."""
    rows = [tuple(message[name] for name in COLUMNS) for message in messages]
    frame = spark.createDataFrame(rows, SCHEMA)

    def at(positions: DataFrame) -> Read:
        return Rows(frame.join(positions, "global_position", "left_semi"))

    made = fingerprints.of_messages(Rows(frame), component, progress, "", None)
    of_all = PrefilterInput(partial(grouping.summed, made.mapInArrow, parts=2), at, at)
    jobs = (CommandsJob(component, "", Path()), EffectsJob(component))
    return FullRun(Rows(frame), progress, Prefilter(jobs, of_all, progress))
