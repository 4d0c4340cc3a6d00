"""Latencies of commands from sent to reserved to handled, and the number sent in an hour."""

from collections.abc import Iterator, Sequence

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from spark_jobs.common.result import Latency, Volume
from spark_jobs.common.timestamps import from_hours, hours_since_epoch

STAGES = ("reserved", "handled", "whole")

# How many hours are reported, the newest: more than a year with commands in every hour.
HOURS = 10_000

# The k of the sketches: exact up to so many commands of a group, and see `latencies` beyond.
ACCURACY = 4_000

_PERCENTILES = (0.5, 0.95, 0.99)
_SECOND = 1_000_000


def durations(commands: DataFrame, reservations: DataFrame, events: DataFrame) -> DataFrame:
    """Return when each command was sent, reserved and handled.

    A copy follows its command. An event follows the copy, or the command if that was handled
    directly or started its entity's stream. A pseudo event counts as an event here, since it says
    that its message was handled. Of several copies or events of one cause the first in the store
    counts.

    Only numbers are grouped, which needs no sorting; the names of types are joined at the end.
    """
    nothing = F.lit(None)
    copies = reservations.select(
        F.col("global_position").alias("cause"),
        F.col("causation").alias("command"),
        F.col("time").alias("reserved"),
        nothing.cast("bigint").alias("event"),
        nothing.cast("timestamp").alias("handled"),
    ).where(F.col("command").isNotNull())
    effects = events.select(
        F.col("causation").alias("cause"),
        nothing.cast("bigint").alias("command"),
        nothing.cast("timestamp").alias("reserved"),
        F.col("global_position").alias("event"),
        F.col("time").alias("handled"),
    ).where(F.col("cause").isNotNull())
    by_cause = (
        copies.unionByName(effects)
        .groupBy("cause")
        .agg(
            F.max("command").alias("command"),
            F.max("reserved").alias("reserved"),
            F.min("event").alias("event"),
            F.min_by("handled", "event").alias("handled"),
        )
    )
    # Other causes are commands themselves, or messages that do not matter here.
    by_command = (
        by_cause.withColumn("copy", F.when(F.col("command").isNotNull(), F.col("cause")))
        .withColumn("command", F.coalesce("command", "cause"))
        .groupBy("command")
        .agg(
            F.min_by("reserved", "copy").alias("reserved"),
            F.min_by("handled", "event").alias("handled"),
        )
    )
    sent = commands.select(
        F.col("global_position").alias("command"),
        F.coalesce("type", F.lit("")).alias("type"),
        F.col("time").alias("sent"),
    )
    return (
        sent.where("sent IS NOT NULL")
        .join(by_command, "command")
        .select("type", "sent", "reserved", "handled")
    )


def latencies(durations: DataFrame) -> list[Latency]:
    """Sum up how long commands took: all of them, by type, by hour, and by type and hour.

    A message's time is when its transaction started. A consumer's transaction may have started
    before that of the command that it reads; such a negative duration counts as 0.

    Percentiles are durations that occurred, by the nearest rank. They come from KLL sketches
    (Karnin, Lang and Liberty, *Optimal Quantile Approximation in Streams*, 2016) of each hour's
    commands of a type, which are then merged, so that the rows are read once. They are exact for up
    to `ACCURACY` commands. Beyond that they are estimates: with a probability of 99 % the rank is
    off by at most 0.13 % of the commands, so the reported p99 lies between p98.87 and p99.13.
    ``count`` and ``max`` are always exact.
    """
    rows = _newest(_merged(_by_type_and_hour(durations))).collect()
    latencies = [measured for row in rows for measured in _of_row(row)]
    return sorted(latencies, key=_order)


def volumes(commands: DataFrame, latency: Sequence[Latency]) -> list[Volume]:
    """Count what was sent in each hour, and what became of it."""
    handled = {
        measured.hour: measured.count
        for measured in latency
        if measured.stage == "whole" and measured.type is None
    }
    rows = _by_hour(commands).orderBy(F.col("hour").desc()).limit(HOURS).collect()
    return [
        Volume(
            hour=from_hours(row["hour"]),
            commands=row["commands"],
            duplicates=row["duplicates"],
            handled=handled.get(from_hours(row["hour"]), 0),
        )
        for row in reversed(rows)
    ]


def _by_type_and_hour(durations: DataFrame) -> DataFrame:
    """Make the sketches of each hour's commands of a type, a column for each stage."""
    took = {
        "reserved": _took("sent", F.col("reserved")),
        "handled": _took(F.coalesce("reserved", "sent"), F.col("handled")),
        "whole": _took("sent", F.col("handled")),
    }
    return (
        durations.select(
            "type",
            hours_since_epoch("sent").alias("hour"),
            *[took[stage].alias(stage) for stage in STAGES],
        )
        .groupBy("type", "hour")
        .agg(
            *[
                column.alias(f"{stage}_{name}")
                for stage in STAGES
                for name, column in {
                    "count": F.count(stage),
                    "max": F.max(stage),
                    "sketch": F.kll_sketch_agg_bigint(stage, ACCURACY),
                }.items()
            ]
        )
    )


def _took(start: Column | str, end: Column) -> Column:
    """Return the microseconds between two times, null where the second is."""
    took = F.unix_micros(end) - F.unix_micros(start)
    return F.when(end.isNotNull(), F.greatest(took, F.lit(0)))


def _merged(groups: DataFrame) -> DataFrame:
    """Merge the sketches to those of all, of each type, of each hour, and of each of both."""
    merged = groups.cube("type", "hour").agg(
        F.grouping("type").alias("all_types"),
        F.grouping("hour").alias("all_hours"),
        *[
            column.alias(f"{stage}_{name}")
            for stage in STAGES
            for name, column in {
                "count": F.sum(f"{stage}_count"),
                "max": F.max(f"{stage}_max"),
                "sketch": F.kll_merge_agg_bigint(f"{stage}_sketch", ACCURACY),
            }.items()
        ],
    )
    ranks = F.array(*[F.lit(rank) for rank in _PERCENTILES])
    for stage in STAGES:
        # A quantile of an empty sketch is an error.
        quantiles = F.kll_sketch_get_quantile_bigint(f"{stage}_sketch", ranks)
        percentiles = F.when(F.col(f"{stage}_count") > 0, quantiles)
        merged = merged.withColumn(f"{stage}_percentiles", percentiles).drop(f"{stage}_sketch")
    return merged


def _newest(groups: DataFrame) -> DataFrame:
    """Leave out the rows of all hours but the newest; those of all hours together stay."""
    by_hour = Window.orderBy(F.col("hour").desc_nulls_last())
    return groups.withColumn("nth", F.dense_rank().over(by_hour)).where(
        (F.col("all_hours") == 1) | (F.col("nth") <= HOURS)
    )


def _of_row(row: Row) -> Iterator[Latency]:
    """Yield the latency of each stage of a group's row."""
    for stage in STAGES:
        if row[f"{stage}_count"]:
            p50, p95, p99 = (value / _SECOND for value in row[f"{stage}_percentiles"])
            yield Latency(
                stage=stage,
                type=None if row["all_types"] else row["type"],
                hour=None if row["all_hours"] else from_hours(row["hour"]),
                count=row[f"{stage}_count"],
                p50=p50,
                p95=p95,
                p99=p99,
                max=row[f"{stage}_max"] / _SECOND,
            )


def _order(latency: Latency) -> tuple[int, bool, bool, float, str]:
    """Order by stage; in it all, by type, by hour, by both."""
    return (
        STAGES.index(latency.stage),
        latency.hour is not None,
        latency.type is not None,
        latency.hour.timestamp() if latency.hour else 0.0,
        latency.type or "",
    )


def _by_hour(commands: DataFrame) -> DataFrame:
    """Count the commands and duplicates of each hour.

    One pass groups the commands by hour, and also by key for the hour in which each key was first
    sent. An hour's commands with a key that are neither conflicts nor the first of their key are
    duplicates.
    """
    same = ~F.col("is_conflict")
    grouped = (
        commands.select("key_stream", hours_since_epoch("time").alias("hour"), "is_conflict")
        .groupingSets([["key_stream"], ["hour"]], "key_stream", "hour")
        .agg(
            (F.grouping("hour") == 1).alias("is_key"),
            F.min(F.when(same, F.col("hour"))).alias("first"),
            F.count(F.lit(1)).alias("commands"),
            F.count(F.when(same, F.col("key_stream"))).alias("keyed"),
        )
    )
    of_hour = ~F.col("is_key")
    first = F.col("is_key") & F.col("key_stream").isNotNull()
    return (
        grouped.groupBy(F.when(of_hour, F.col("hour")).otherwise(F.col("first")).alias("hour"))
        .agg(
            F.sum(F.when(of_hour, F.col("commands"))).alias("commands"),
            F.sum(F.when(of_hour, F.col("keyed"))).alias("keyed"),
            F.count(F.when(first, 1)).alias("firsts"),
        )
        .where(F.col("hour").isNotNull())  # of keys that have nothing but conflicts, or no times
        .select("hour", "commands", (F.col("keyed") - F.col("firsts")).alias("duplicates"))
    )
