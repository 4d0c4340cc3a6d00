"""The rows of findings: what is reported of each message that needs attention."""

from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from reservation.component import Component
from reservation.declaration.table import declarations
from spark_jobs.common.declaration import Declaration, categories_of
from spark_jobs.common.timestamps import readable
from spark_jobs.facts.keys import reserved_key, with_function_keys
from spark_jobs.snapshot.progress import Progress
from spark_jobs.verdicts.meaning import Lookup

# The columns of findings, in the order of the output.
FINDING = (
    "finding",
    "command_category",
    "reservation_category",
    "key_stream",
    "stream_name",
    "position",
    "global_position",
    "type",
    "message_id",
    "time",
    "differences",
)
# The findings of messages that follow others, or that others should follow.
OF_CAUSES = ("unhandled", "effect-twice", "without-cause")
_MESSAGE = ("category", "global_position", "position", "stream_name", "type", "id", "time")


def described(
    findings: DataFrame, lookup: Lookup, component: Component, app: str, app_dir: Path | None
) -> DataFrame:
    """Return findings with their messages, and the ``group`` that each is counted in."""
    declaration, commands = Declaration.of(component), declarations(component).command_category
    made = ["key_category", "key_stream"]
    if declaration.by_function:
        made += ["version", "function_data"]
    at = findings.withColumnRenamed("position", "global_position")
    messages = with_function_keys(
        lookup(
            at.select("global_position").distinct(), categories_of(component), [*_MESSAGE, *made]
        ),
        declaration,
        app,
        app_dir,
    )
    of_causes = at.where("finding = 'effect-twice'").select(F.col("grp").alias("global_position"))
    causes = lookup(
        of_causes.distinct(),
        categories_of(component),
        ["global_position", "category", "stream_name"],
    ).toDF("grp", "cause_category", "cause_stream")
    finding, category = F.col("finding"), F.col("category")
    of_cause, was_sent = finding.isin(*OF_CAUSES), category == commands
    is_cause = finding == "unhandled"
    return (
        at.join(messages, "global_position")
        .join(causes, "grp", "left")
        .select(
            "finding",
            F.when(~of_cause, F.lit(commands))
            .when(is_cause, category)
            .otherwise(F.col("cause_category"))
            .alias("command_category"),
            F.when(~of_cause & was_sent, F.col("key_category"))
            .otherwise(category)
            .alias("reservation_category"),
            F.when(
                of_cause, F.when(is_cause, F.col("stream_name")).otherwise(F.col("cause_stream"))
            )
            .when(was_sent, F.col("key_stream"))
            .otherwise(reserved_key(declaration))
            .alias("key_stream"),
            "stream_name",
            "position",
            "global_position",
            "type",
            F.col("id").alias("message_id"),
            readable("time").alias("time"),
            "differences",
            F.col("grp").cast("string").alias("group"),
        )
    )


def with_deleted(found: DataFrame, progress: Progress, component: Component) -> DataFrame:
    """Add the findings of deleted messages that consumers stand at: only their ids are known."""
    if not progress.deleted:
        return found
    commands = declarations(component).command_category
    known = [
        {
            "finding": "missing",
            "command_category": commands if category == commands else None,
            "reservation_category": category,
            "global_position": position,
            "message_id": message_id,
        }
        for category, position, message_id in progress.deleted
    ]
    rows = [tuple(map(one.get, found.columns)) for one in known]
    return found.unionByName(found.sparkSession.createDataFrame(rows, found.schema))
