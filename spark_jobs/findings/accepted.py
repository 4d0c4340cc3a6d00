"""Findings that people have accepted: their ids, and what of a run they are."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from reservation.maintenance.finding_decisions import FindingDecision
from spark_jobs.common.result import AcceptedFinding, Difference, Finding
from spark_jobs.common.timestamps import from_micros
from spark_jobs.findings.described import FINDING

# The columns of findings in files.
COLUMNS = ("id", *FINDING, "is_accepted")


def run_name() -> str:
    """Return the name of the folder of a run in a table of findings; names sort by their time."""
    return f"run={datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"


def written(rows: DataFrame, place: Path, run: Mapping[str, Any]) -> None:
    """Write the findings of a run as one file, each with what is known of the run."""
    known = {name: F.lit(value).cast(type_) for name, (value, type_) in run.items()}
    rows.select(*COLUMNS).withColumns(known).coalesce(1).write.parquet(str(place))


# How many rows of each finding are shown; the Parquet output has all of them.
SAMPLES = 20

# What is counted once, however many messages show it.
_BY_GROUP = ("multiple", "effect-twice")


@dataclass(frozen=True, slots=True)
class SortedFindings:
    """The findings of a run, those that were accepted apart from the others.

    Attributes:
        marked: all of them, with ``is_accepted``.
        open: the others.
        accepted: those that were accepted.
        counts: by kind, what of the counts is accepted.
    """

    marked: DataFrame
    open: DataFrame
    accepted: list[AcceptedFinding] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


def identified(findings: DataFrame, component: str) -> DataFrame:
    """Add the ``id`` of each finding.

    It has the kind, the global position, and a hash of the component and of the message's id,
    which differs in another component or log.
    """
    of = F.sha2(F.concat_ws("\n", F.lit(component), "message_id"), 256)
    id_ = F.concat_ws(
        "-", "finding", F.col("global_position").cast("string"), F.substring(of, 1, 8)
    )
    return findings.withColumn("id", id_)


def without(findings: DataFrame, decisions: Mapping[str, FindingDecision]) -> DataFrame:
    """Return the findings that were not accepted."""
    if not decisions:
        return findings
    return findings.join(_ids(findings, decisions), "id", "left_anti")


def divided(findings: DataFrame, decisions: Mapping[str, FindingDecision]) -> SortedFindings:
    """Divide findings into those that were accepted and the others."""
    if not decisions:
        return SortedFindings(findings.withColumn("is_accepted", F.lit(False)), findings)
    ids = _ids(findings, decisions).withColumn("accepted", F.lit(True))
    marked = findings.join(ids, "id", "left").withColumn(
        "is_accepted", F.coalesce("accepted", F.lit(False))
    )
    still_open = marked.where(~F.col("is_accepted"))
    rows = marked.where("is_accepted").withColumn("time", F.unix_micros("time")).collect()
    found = [_accepted(finding_of(row.asDict(recursive=True)), decisions) for row in rows]
    found.sort(key=lambda one: (one.finding.finding, one.finding.global_position))
    return SortedFindings(marked, still_open, found, _counts(marked))


def finding_of(values: Mapping[str, Any]) -> Finding:  # Any: what the columns hold
    """Return a finding from a row, whose time is in microseconds."""
    wanted = {one.name: values[one.name] for one in fields(Finding)}
    differences = tuple(Difference(**one) for one in values["differences"] or ())
    time = None if values["time"] is None else from_micros(values["time"])
    return Finding(**{**wanted, "time": time, "differences": differences})


def _accepted(finding: Finding, decisions: Mapping[str, FindingDecision]) -> AcceptedFinding:
    by = decisions[finding.id]
    return AcceptedFinding(finding, by.reason or "", by.decided_by, by.decided_at.astimezone(UTC))


def _ids(findings: DataFrame, decisions: Mapping[str, FindingDecision]) -> DataFrame:
    table = pa.table({"id": sorted(decisions)})
    return F.broadcast(findings.sparkSession.createDataFrame(table))


def _counts(marked: DataFrame) -> dict[str, int]:
    """Return by kind how many of those that are counted are accepted.

    Of what is counted once for a group, all rows have to be accepted.
    """
    unit = F.when(F.col("finding").isin(*_BY_GROUP), F.col("group")).otherwise(F.col("id"))
    units = marked.groupBy("finding", unit.alias("unit")).agg(F.every("is_accepted").alias("all"))
    rows = units.where("all").groupBy("finding").count().collect()
    return {row["finding"]: row["count"] for row in rows}


def samples(findings: DataFrame) -> list[Finding]:
    """Return the first rows of each finding."""
    by_position = Window.partitionBy("finding").orderBy("global_position")
    rows = (
        findings.withColumn("nth", F.row_number().over(by_position))
        .where(F.col("nth") <= SAMPLES)
        .drop("nth")
        .withColumn("time", F.unix_micros("time"))
        .collect()
    )
    found = [finding_of(row.asDict(recursive=True)) for row in rows]
    return sorted(found, key=attrgetter("finding", "global_position"))
