"""The verdicts on messages and what follows them: the rules, and the columns that they need.

The rows of a cause are sorted: the cause first, then its events by stream and type, in their order.
"""

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from spark_jobs.analysis.verdicts import derived_ids, judging
from spark_jobs.analysis.verdicts.judging import (
    Rule,
    finding,
    finding_of,
    found,
    is_passes,
    own_name,
    verdict_of,
)

_OPEN = ("pending", "unhandled", "dead", "without-cause")


def in_order() -> Column:
    """Return whether all rows of a group are sure to be in order, from its sums.

    The sums are those that `spark_jobs.analysis.sketches.sketch.EffectsSketch.seen` gives.
    """
    return judging.is_in_order(_rules([], []))


def _rules(silent_types: Sequence[str], subscribed: Sequence[str]) -> list[Rule]:
    """Return the rules of the verdicts, which stand for rows of `judge` and sums of `groups`."""
    is_copy, is_cause = F.col("is_copy"), F.col("is_cause")
    is_silent = F.col("type").isin(*silent_types) & ~F.col("category").isin(*subscribed)
    is_category, has_effect = (
        F.col("category").isNotNull(),
        F.col("is_followed") | F.col("was_passed"),
    )
    return [
        Rule("handled", is_copy & F.col("is_followed")),
        Rule("passed", is_copy & F.col("was_passed")),
        Rule("dead", is_copy & F.col("is_letter")),
        Rule("pending", is_copy & ~F.col("was_read")),
        Rule("silent", is_copy & is_silent),
        finding("unhandled", is_copy, is_category & ~has_effect & ~F.col("may_lack")),
        Rule(None, ~is_cause & ~F.col("starts")),
        finding("without-cause", ~is_cause & ~F.col("has_cause"), ~F.col("is_cause")),
        finding("effect-twice", F.col("is_twice"), F.col("kinds") < F.col("events")),
    ]


def judge(
    rows: DataFrame,
    silent_types: list[str],
    names: Mapping[str, str],
    subscribed: Sequence[str] = (),
) -> DataFrame:
    """Give every message that was to be handled its verdict, and each event that should not be."""
    is_cause, type_ = F.col("is_cause"), own_name(F.col("type"), names)
    order = [~is_cause, F.col("stream_name"), type_, F.col("position")]
    in_order = Window.partitionBy("group").orderBy(*order)
    whole = in_order.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)

    def before(name: str | Column) -> Column:
        return F.lag(name).over(in_order)

    again = (
        ~is_cause
        & F.first(is_cause).over(whole)
        & F.col("starts")
        & ~before("is_cause")
        & (before("stream_name") == F.col("stream_name"))
        & (before(type_) == type_)
    )
    is_again = F.coalesce(again, F.lit(False))
    # In few steps, because Spark analyses each of them.
    grouped = rows.withColumn("is_again", is_again).withColumns(
        {
            "has_cause": F.first(is_cause).over(whole),
            "passes": F.sum(F.when(is_passes(F.col("category")), 1).otherwise(0)).over(whole),
            "followers": F.sum(F.when(is_cause, 0).otherwise(1)).over(whole),
            "cause_id": F.first("id").over(whole),
            "cause_stream": F.first("stream_name").over(whole),
            "cause_entity": F.first("entity").over(whole),
            "cause_category": F.first("category").over(whole),
            # The id of the first event of the same stream and type.
            "first_id": F.last(F.when(~F.col("is_again"), F.col("id")), True).over(so_far),
        }
    )
    is_twice = F.col("is_again") & ~(
        derived_ids.is_derived("id") & derived_ids.is_derived("first_id")
    )
    marked = grouped.withColumn("is_twice", is_twice).withColumn(
        "nth_twice", F.sum(F.when(F.col("is_twice"), 1).otherwise(0)).over(so_far)
    )
    rules = _rules(silent_types, subscribed)
    return (
        marked.withColumns(
            {
                "is_followed": F.col("followers") > F.col("passes"),
                "was_passed": F.col("passes") > 0,
            }
        )
        .withColumn("verdict", verdict_of(rules))
        .withColumns(
            {
                "is_first_again": F.col("is_twice") & (F.col("nth_twice") == 1),
                "findings": found(finding_of(rules)),
                "command_category": F.when(F.col("has_cause"), F.col("cause_category")),
                "reservation_category": F.col("category"),
                "key_stream": F.when(F.col("has_cause"), F.col("cause_stream")),
                "message_id": F.col("id"),
                "is_open": F.coalesce(F.col("verdict").isin(*_OPEN), F.lit(False)),
            }
        )
    )
