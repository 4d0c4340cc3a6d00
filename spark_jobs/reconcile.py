"""Commands held against their reservations: is every command reserved, and each key once?

Every row of the two categories gets one verdict. Rows of one key are put in order, its reservation
first and then its commands as they came; the content of the first row is what the key stands for.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from reservation.idempotence.pseudo_event import PSEUDO_EVENT

# What needs a person's attention.
VIOLATIONS = ("missing", "orphan", "multiple", "conflict")


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What became of the commands that are reserved into one category.

    Commands are without a key, the first of their key, a duplicate, or a conflict: ``commands =
    keyless + keys + duplicates + conflicts``; and ``keyless + keys = reserved + missing +
    pending + dead``. (Where a reservation says what none of its commands says, each of them is a
    conflict, and the first is counted as a key too.)

    Attributes:
        command_category: where the commands are.
        reservation_category: where they are reserved, or the entity's category for commands that
            initiate.
        commands: how many commands are stored.
        keys: how many distinct idempotence keys they have.
        keyless: commands that have no usable key, and so can not be reserved.
        duplicates: commands that say the same as an earlier one of their key.
        reserved: keys that have a reservation.
        missing: keys without one although the consumer has read their command: lost.
        pending: keys without one that the consumer has not read yet.
        dead: keys without one whose command is a dead letter, or is parked behind one.
        orphans: reservations without a command.
        multiple: reservation streams with more than one message.
        conflicts: commands whose content is not that of their key.
    """

    command_category: str
    reservation_category: str
    commands: int
    keys: int
    keyless: int
    duplicates: int
    reserved: int
    missing: int
    pending: int
    dead: int
    orphans: int
    multiple: int
    conflicts: int

    @property
    def in_order(self) -> bool:
        """Whether nothing was found that needs attention."""
        return not (self.missing or self.orphans or self.multiple or self.conflicts)


def judge(
    commands: DataFrame, reservations: DataFrame, position: int, letters: Sequence[int] = ()
) -> DataFrame:
    """Give every command and reservation its verdict.

    Args:
        commands: those reserved into one category, with the columns of `spark_jobs.source`.
        reservations: that category, with the same columns.
        position: how far the consumer of the commands has read.
        letters: the global positions of the commands that it passed without having dealt with them.

    Returns:
        The rows of both with ``role`` (command or reservation), ``key_stream``, ``is_key`` (the
        first command of its key) and ``verdict``: reserved, duplicate, missing, pending, dead,
        conflict, orphan, multiple, or null for a reservation that is in order.
    """
    columns = ["global_position", "position", "stream_name", "type", "id", "key_stream", "content"]
    rows = (
        _with_letters(commands, letters)
        .select(F.lit("command").alias("role"), "is_letter", *columns)
        .unionByName(
            reservations.withColumn("key_stream", F.col("stream_name")).select(
                F.lit("reservation").alias("role"), F.lit(False).alias("is_letter"), *columns
            )
        )
        .withColumn("says", F.struct("type", "content"))
        # A command without a key has nothing in common with any other.
        .withColumn(
            "group",
            F.coalesce("key_stream", F.concat(F.lit("-"), F.col("global_position").cast("string"))),
        )
    )
    is_command = F.col("role") == "command"
    order: list[Column | str] = [
        F.col("role").desc(),
        F.when(~is_command, F.col("position")),
        "global_position",
    ]
    in_order = Window.partitionBy("group").orderBy(*order)
    whole = Window.partitionBy("group")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)

    def count(condition: Column) -> Column:
        return F.sum(F.when(condition, 1).otherwise(0))

    judged = (
        rows.withColumn("meant", F.first("says").over(in_order))
        .withColumn("is_reserved", F.max(~is_command).over(whole))
        .withColumn("has_command", F.max(is_command).over(whole))
        .withColumn("same", F.col("says").eqNullSafe(F.col("meant")))
        .withColumn("nth_same", count(is_command & F.col("same")).over(so_far))
        .withColumn("nth_command", count(is_command).over(so_far))
        .withColumn("nth_reservation", count(~is_command).over(so_far))
    )
    read = F.col("global_position") <= position
    unreserved = F.when(F.col("is_letter"), "dead").when(read, "missing").otherwise("pending")
    first_command = is_command & (F.col("nth_command") == 1)
    verdict = (
        F.when(is_command & ~F.col("same"), "conflict")
        .when(is_command & (F.col("nth_same") > 1), "duplicate")
        .when(is_command & F.col("is_reserved"), "reserved")
        .when(is_command, unreserved)
        .when(~F.col("has_command") & (F.col("nth_reservation") == 1), "orphan")
        .when(F.col("nth_reservation") > 1, "multiple")
    )
    return judged.select(
        "role",
        "key_stream",
        "stream_name",
        "position",
        "global_position",
        "type",
        "id",
        (first_command & F.col("key_stream").isNotNull()).alias("is_key"),
        (F.col("nth_reservation") == 2).alias("is_second"),
        "is_reserved",
        verdict.alias("verdict"),
    )


def _with_letters(commands: DataFrame, letters: Sequence[int]) -> DataFrame:
    """Return the commands with ``is_letter``: whether each is one of these global positions."""
    if not letters:
        return commands.withColumn("is_letter", F.lit(False))
    rows = commands.sparkSession.createDataFrame(
        [(position, True) for position in letters], "global_position bigint, found boolean"
    )
    joined = commands.join(F.broadcast(rows), "global_position", "left")
    return joined.withColumn("is_letter", F.coalesce("found", F.lit(False)))


def count_up(judged: DataFrame, command_category: str, reservation_category: str) -> Reconciled:
    """Count the verdicts of one pair of categories."""
    is_command = F.col("role") == "command"

    def count(condition: Column) -> Column:
        return F.count(F.when(condition, 1))

    verdict = F.col("verdict")
    row = judged.agg(
        count(is_command).alias("commands"),
        count(F.col("is_key")).alias("keys"),
        count(is_command & F.col("key_stream").isNull()).alias("keyless"),
        count(verdict == "duplicate").alias("duplicates"),
        count(F.col("is_key") & F.col("is_reserved")).alias("reserved"),
        count(verdict == "missing").alias("missing"),
        count(verdict == "pending").alias("pending"),
        count(verdict == "dead").alias("dead"),
        count(verdict == "orphan").alias("orphans"),
        count((F.col("role") == "reservation") & F.col("is_second")).alias("multiple"),
        count(verdict == "conflict").alias("conflicts"),
    ).collect()[0]
    return Reconciled(command_category, reservation_category, **row.asDict())


def findings(judged: DataFrame, command_category: str, reservation_category: str) -> DataFrame:
    """Return the rows that need attention, one for each message concerned."""
    return judged.where(F.col("verdict").isin(*VIOLATIONS)).select(
        F.col("verdict").alias("finding"),
        F.lit(command_category).alias("command_category"),
        F.lit(reservation_category).alias("reservation_category"),
        "key_stream",
        "stream_name",
        "position",
        "global_position",
        "type",
        F.col("id").alias("message_id"),
    )


def initiated(commands: DataFrame, streams: DataFrame) -> DataFrame:
    """Return the first messages of entities' streams as reservations of what they follow.

    A stream that a command initiated says what that command says, so its content is taken from
    there. A stream without a command that initiates stands for nothing here and is left out, and so
    do pseudo events, which start no stream.

    Args:
        commands: those that initiate, with the columns of `spark_jobs.source`.
        streams: the entity's category, with the same columns.
    """
    cause = commands.select(
        F.col("global_position").alias("causation"),
        F.col("type").alias("cause_type"),
        F.col("content").alias("cause_content"),
    )
    asked_for = commands.select("key_stream").distinct()
    return (
        streams.where(F.col("type") != PSEUDO_EVENT)
        .groupBy("stream_name")
        .agg(F.min_by(F.struct("*"), "position").alias("first"))
        .select("first.*")
        .join(asked_for, F.col("stream_name") == asked_for["key_stream"], "left_semi")
        .join(cause, "causation", "left")
        .withColumn("type", F.col("cause_type"))
        .withColumn("content", F.col("cause_content"))
    )
