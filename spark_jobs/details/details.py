"""A report's ``--details``: latency, volume and reissues."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from reservation.component import Component
from reservation.declaration.table import declarations
from spark_jobs.common.declaration import Declaration
from spark_jobs.common.result import Report
from spark_jobs.common.timestamps import readable
from spark_jobs.details import latency, reissues
from spark_jobs.facts.keys import with_function_keys

# Reads columns of categories.
Read = Callable[[Sequence[str], Sequence[str]], DataFrame]

_MADE = ("global_position", "time", "type", "sender", "key_category", "key_stream")


def detailed(
    report: Report,
    read: Read,
    component: Component,
    app: str,
    app_dir: Path | None,
    findings: DataFrame,
) -> Report:
    """Return a report with its details, given the findings of the run."""
    declared, declaration = declarations(component), Declaration.of(component)
    of_code = ["version", "stream_name", "function_data"] if declaration.by_function else []
    sent = with_function_keys(
        read([declared.command_category], [*_MADE, *of_code]), declaration, app, app_dir
    ).where(F.col("key_category").isNotNull())
    own = sent.withColumns(
        {"type": _own_name(F.col("type"), declaration), "time": readable("time")}
    )
    commands = reissues.marked(own, findings)
    copies, events = (
        read(names, ["global_position", "time", "causation"]).withColumn("time", readable("time"))
        for names in (declared.reservation_categories, [component.name])
    )
    durations = latency.durations(commands, copies, events)
    measured = latency.latencies(durations)
    return dataclasses.replace(
        report,
        latency=measured,
        volume=latency.volumes(commands, measured),
        reissues=reissues.reissues(commands),
    )


def _own_name(type_: Column, declaration: Declaration) -> Column:
    """Return the name that a message's type has today."""
    own = type_
    for name, now in declaration.names.items():
        own = F.when(type_ == name, F.lit(now)).otherwise(own)
    return own
