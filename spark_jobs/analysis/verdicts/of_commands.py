"""The verdicts on commands and their reservations: the rules, and the columns that they need.

The rows of a key are sorted: its reservation first, then its commands in the order of the log. The
content of the first row is what the key stands for. A command with another content is in conflict,
unless both were decoded and found to mean the same (`spark_jobs.analysis.verdicts.meaning`).
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from spark_jobs.analysis.verdicts.judging import (
    Rule,
    finding,
    finding_of,
    found,
    is_in_order,
    verdict_of,
)

_OPEN = ("missing", "pending", "dead")


def _rules() -> list[Rule]:
    """Return the rules of the verdicts, which stand for rows of `judge` and sums of `groups`."""
    is_command, reservations = F.col("is_command"), F.col("reservations")
    is_without_command = (F.col("commands") == 0) & (F.col("starts") == 0)
    is_unreserved = (reservations == 0) & (F.col("waiting") < F.col("commands"))
    differs = (F.col("differs") == 1) | (F.col("follows_another") == 1)
    is_keyless = is_command & F.col("key_stream").isNull() & ~F.col("is_letter")
    return [
        finding("wrong-type", F.col("is_wrong"), is_without_command),
        finding("conflict", is_command & ~F.col("same"), differs),
        Rule("duplicate", is_command & (F.col("nth_same") > 1)),
        # The consumer took its key from the correction.
        Rule("reserved", is_keyless & F.col("is_corrected")),
        Rule("duplicate", is_keyless & F.col("is_reissue_of_corrected") & F.col("was_read")),
        Rule("reserved", is_command & F.col("is_reserved")),
        Rule("dead", is_command & F.col("is_letter"), is_unreserved),
        finding("missing", is_command & F.col("was_read"), is_unreserved),
        Rule("pending", is_command),
        # A stream without a command that initiates is not compared.
        Rule(None, F.col("is_start")),
        finding(
            "orphan",
            ~F.col("has_command") & (F.col("nth_reservation") == 1) & ~F.col("follows_corrected"),
            is_without_command,
        ),
        finding("multiple", F.col("nth_reservation") > 1, reservations > 1),
    ]


def _mismatch() -> Rule:
    """Return the rule of what the consumer took for a conflict and is none, or the reverse.

    A row can have this finding beside its verdict.
    """
    is_conflict = F.coalesce(F.col("verdict") == "conflict", F.lit(False))
    # A dead letter says itself why the consumer has not handled it.
    is_unrecorded = is_conflict & F.col("is_watched") & ~F.col("is_letter")
    differs = F.when(F.col("is_recorded"), ~is_conflict).otherwise(is_unrecorded)
    # What is a conflict with a corrected command depends on when the two were compared.
    read = F.col("is_command") & F.col("was_read") & ~F.col("was_corrected")
    # Where nothing is recorded, only a row in conflict can be one; that has a rule of its own.
    return finding("conflict-mismatch", differs & read, F.col("recorded") > 0)


def in_order() -> Column:
    """Return whether all rows of a group are sure to be in order, from its sums.

    The sums are those that `spark_jobs.analysis.commands.CommandsJob.groups` makes.
    """
    return is_in_order([*_rules(), _mismatch()])


def judge(rows: DataFrame, command_category: str, initiating: str | None) -> DataFrame:
    """Give every command and reservation its verdict."""
    is_command = F.col("is_command")
    order: list[Column | str] = [
        is_command,
        F.when(~is_command, F.col("position")),
        "global_position",
    ]
    in_order = Window.partitionBy("group").orderBy(*order)
    whole = in_order.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)

    def count(condition: Column) -> Column:
        return F.sum(F.when(condition, 1).otherwise(0))

    says: Column = F.struct("type", "version", "meant")
    meant = F.first(says).over(whole)
    first = F.first("global_position").over(whole)
    starts, elsewhere = F.lit(False), F.lit(0)
    if initiating is not None:
        # An event has the content of the command of its key that it follows, or none.
        starts = ~is_command & (F.col("pair") == initiating)
        rows = rows.withColumn("followed", F.first("causation").over(whole))
        is_followed = is_command & (F.col("global_position") == F.col("followed"))
        followed = F.max(F.when(is_followed, says)).over(whole)
        is_started = F.first(starts).over(whole)
        meant = F.when(is_started, followed).otherwise(meant)
        first = F.when(is_started, F.col("followed")).otherwise(first)
        # A command that got its key from a correction is in no group.
        is_elsewhere = F.first(starts & F.col("follows_corrected")).over(whole)
        elsewhere = (is_elsewhere & ~F.max(is_followed).over(whole)).cast("int")
        says = F.when(starts, followed).otherwise(says)
    same = says.eqNullSafe(meant)
    if "alike" in rows.columns:
        same |= F.coalesce(F.array_contains("alike", first), F.lit(False))
    # In few steps, because Spark analyses each of them.
    judged = rows.withColumns(
        {
            "is_start": starts,
            "same": same,
            "first": first,
            "is_reserved": F.max(~is_command).over(whole),
            "has_command": F.max(is_command).over(whole),
            "nth_command": count(is_command).over(so_far),
            "nth_reservation": count(~is_command).over(so_far),
            "was_corrected": F.max("is_corrected").over(whole),
        }
    ).withColumn("nth_same", elsewhere + count(is_command & F.col("same")).over(so_far))
    rules = _rules()
    judged = judged.withColumn("verdict", verdict_of(rules))
    mismatch = _mismatch()
    judged = judged.withColumn("is_mismatch", mismatch.row)
    is_reservation = ~is_command & ~F.col("is_start") & ~F.col("is_wrong")
    return judged.withColumns(
        {
            "is_key": is_command & (F.col("nth_command") == 1) & F.col("key_stream").isNotNull(),
            "is_second": is_reservation & (F.col("nth_reservation") == 2),
            "compared_with": F.when(is_command & ~F.col("same"), F.col("first")),
            "findings": found(finding_of(rules), F.when(F.col("is_mismatch"), mismatch.verdict)),
            "command_category": F.lit(command_category),
            "reservation_category": F.col("pair"),
            "message_id": F.col("id"),
            # A command without a reservation waits for the consumer, or for a repair.
            "is_open": F.coalesce(F.col("verdict").isin(*_OPEN), F.lit(False)),
        }
    )
