"""Reissues by sender, and their delays.

The sends of a key are sorted by time, and each is compared with the one before it. Everything else
is counted from there, so the commands are read once and sorted once.
"""

from datetime import timedelta
from typing import Any

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from spark_jobs.common.result import Burst, Reissues, Sender
from spark_jobs.common.timestamps import from_micros

# A send belongs to the burst of the one before it if it came at most so long after that.
BURST = timedelta(seconds=10)

# How many bursts and senders are reported. Senders choose their names in the metadata that they
# write, so there may be as many senders as commands.
BURSTS = 20
SENDERS = 1_000


def marked(commands: DataFrame, findings: DataFrame) -> DataFrame:
    """Add which commands are conflicts, and therefore no duplicates."""
    found = findings.where(F.col("finding") == "conflict")
    conflicts = found.select("global_position", F.lit(True).alias("is_conflict"))
    return commands.join(conflicts, "global_position", "left").fillna(False, ["is_conflict"])


def reissues(commands: DataFrame) -> Reissues:
    """Return who sends again, how often, how late, and how quickly, from marked commands.

    Each key is counted for one sender only, so that the sums over all senders are those of the
    store: a key for the sender and type of its first send, a reissued key for those of its second
    send, and a gap or a burst for those of the send that ends it. Sends with the same time are in
    the order of their global positions.
    """
    found = _of_all(_by_sender(_compared_with_previous(commands))).collect()[0]
    bursts = sorted(
        (_burst(burst) for some in found["bursts"] or () for burst in some),
        key=lambda burst: (-burst.sends, burst.first, burst.key_stream),
    )
    longest, widest = found["longest"], found["widest"]
    return Reissues(
        senders=[_sender(row) for row in found["senders"] or ()],
        longest_gap=None if longest is None else _gap(longest["gap"]),
        longest_gap_key=None if longest is None else longest["key_stream"],
        bursts=bursts[:BURSTS],
        longest_span=None if widest is None else _gap(widest["span"]),
        longest_span_key=None if widest is None else widest["key_stream"],
        untimed=found["untimed"] or 0,
        first_untimed=found["first_untimed"],
    )


def _compared_with_previous(commands: DataFrame) -> DataFrame:
    """Give each send its number, the times since the one before and the first, and its burst.

    Spark spills a window's rows to disk if they are many, so one key may be sent any number of
    times. Each command without a key is a group of its own, so that these are spread evenly.
    """
    in_order = Window.partitionBy("key_stream", "alone").orderBy("time", "global_position")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    microseconds = BURST // timedelta(microseconds=1)
    starts = F.col("gap").isNull() | (F.col("gap") > microseconds)
    return (
        commands.select(
            "key_stream",
            F.when(F.col("key_stream").isNull(), F.col("global_position")).alias("alone"),
            "global_position",
            "type",
            "sender",
            "is_conflict",
            F.unix_micros("time").alias("time"),
        )
        .withColumn("n", F.row_number().over(in_order))
        .withColumn("gap", F.col("time") - F.lag("time").over(in_order))
        .withColumn("span", F.col("time") - F.min("time").over(so_far))
        .withColumn("next_gap", F.lead("time").over(in_order) - F.col("time"))
        .withColumn("started_n", F.max(F.when(starts, F.col("n"))).over(so_far))
        .withColumn("started", F.max(F.when(starts, F.col("time"))).over(so_far))
        .withColumn("same", F.count(F.when(~F.col("is_conflict"), 1)).over(so_far))
        .withColumn("sends", F.col("n") - F.col("started_n") + 1)
        .withColumn("ends", F.col("next_gap").isNull() | (F.col("next_gap") > microseconds))
    )


def _by_sender(sends: DataFrame) -> DataFrame:
    """Count the sends of each sender and type."""
    has_key = F.col("key_stream").isNotNull()
    # Structs are compared field by field: the most sends, then the earliest.
    burst = F.struct(
        "sends", (-F.col("started")).alias("minus_first"), "key_stream", F.col("time").alias("last")
    )
    is_burst = F.col("ends") & (F.col("sends") > 1)
    ended = F.when(is_burst, burst)
    # The sends of a command without a key are all their first.
    is_again = F.col("n") > 1
    return sends.groupBy("sender", "type").agg(
        F.count(F.lit(1)).alias("commands"),
        _count(has_key & (F.col("n") == 1)).alias("keys"),
        _count(F.col("n") == 2).alias("reissued"),
        _count(~F.col("is_conflict") & (F.col("same") > 1)).alias("duplicates"),
        F.max(F.when(is_again, F.struct("gap", "key_stream"))).alias("longest"),
        F.max(F.when(is_again, F.struct("span", "key_stream"))).alias("widest"),
        F.max(F.when(is_burst, F.col("sends")).otherwise(0)).alias("largest_burst"),
        _count(F.col("time").isNull()).alias("untimed"),
        F.min(F.when(F.col("time").isNull(), F.col("global_position"))).alias("first_untimed"),
        F.max_by(ended, ended, BURSTS).alias("bursts"),
    )


def _of_all(senders: DataFrame) -> DataFrame:
    """Aggregate everything into one row.

    The largest bursts of all are among those of the senders whose own largest is the largest.
    """
    fields = ["duplicates", "commands", "sender", "type", "keys", "reissued", "longest"]
    sender = F.struct(*fields, "largest_burst")
    return senders.agg(
        F.max_by(sender, sender, SENDERS).alias("senders"),
        F.max("longest").alias("longest"),
        F.max("widest").alias("widest"),
        F.sum("untimed").alias("untimed"),
        F.min("first_untimed").alias("first_untimed"),
        F.max_by("bursts", F.get("bursts", F.lit(0)), BURSTS).alias("bursts"),
    )


def _count(condition: Column) -> Column:
    return F.count(F.when(condition, 1))


def _gap(microseconds: int) -> timedelta:
    return timedelta(microseconds=microseconds)


def _sender(row: Row) -> Sender:
    values: dict[str, Any] = row.asDict()
    longest = values.pop("longest")
    return Sender(**values, longest_gap=None if longest is None else _gap(longest["gap"]))


def _burst(row: Row) -> Burst:
    return Burst(
        row["key_stream"], row["sends"], from_micros(-row["minus_first"]), from_micros(row["last"])
    )
