"""The fixtures of the tests of Spark: one session and one database for all tests of a run."""

from tests.spark.conftest import (
    archive,
    command,
    database_url,
    judging,
    prune,
    reconcile,
    spark,
    spark_database,
)

__all__ = [
    "archive",
    "command",
    "database_url",
    "judging",
    "prune",
    "reconcile",
    "spark",
    "spark_database",
]
