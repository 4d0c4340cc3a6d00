"""Fold facts into summaries: one row a group and part, by Spark's own aggregates.

A group is an idempotence key with its commands and reservations, or a cause with what follows it.
Every aggregate is associative and commutative, so summaries of parts of the log can be merged.
"""

from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from spark_jobs.common.spark_sql import SparkQueries

_QUERIES = SparkQueries("spark_jobs", "fold.sql")


def fold(facts: DataFrame, parts: int) -> DataFrame:
    """Return the summaries of facts, divided by groups into a number of parts.

    Where no partition decides what was read, facts need no cardinal ids.
    """
    cardinal_field, cardinal = "", "cast(NULL AS bigint)"
    if "cardinal" in facts.columns:
        cardinal_field, asked = ", 'cardinal', cardinal", "CASE WHEN role = 1 THEN {} END"
        cardinal = f"min_by({asked.format('cardinal')}, {asked.format('position')})"
    frames = {"facts": facts}
    return _QUERIES(
        "summaries", frames, parts=parts, cardinal_field=cardinal_field, cardinal=cardinal
    )


def merged(*summaries: DataFrame, parts: int) -> DataFrame:
    """Return the summaries of everything that some summaries are of, former ones apart."""
    if any(map(former, summaries)):
        summaries = tuple(map(_with_former, summaries))
    of_all = divided(reduce(DataFrame.unionByName, summaries), parts)
    return _QUERIES("merged", {"summaries": of_all}, former=former(of_all))


def stored(summaries: DataFrame, again: DataFrame, not_closed: DataFrame) -> DataFrame:
    """Return the stored summaries of groups that are judged again, with ``is_former``."""
    return _QUERIES("stored", {"stored": summaries, "again": again, "not_closed": not_closed})


def divided(summaries: DataFrame, parts: int) -> DataFrame:
    """Return summaries as they are, divided by groups into a number of parts."""
    return summaries.repartition(parts, "grp")


def groups(summaries: DataFrame) -> DataFrame:
    """Return one row a group of merged summaries, which have one row a part."""
    return _QUERIES("groups", {"summaries": summaries}, former=former(summaries))


def former(rows: DataFrame) -> str:
    """Return the SQL of the column that keeps former summaries apart; empty if there is none."""
    return "is_former," if "is_former" in rows.columns else ""


def _with_former(summaries: DataFrame) -> DataFrame:
    return summaries if former(summaries) else summaries.withColumn("is_former", F.lit(False))
