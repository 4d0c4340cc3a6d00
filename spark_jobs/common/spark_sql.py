"""Queries in Spark's SQL, from ``.sql`` files."""

from string import Template

from pyspark.sql import DataFrame, SparkSession

from reservation.postgres.queries import load_queries


class SparkQueries:
    """The queries of one file, each a function of DataFrames.

    A plan that is sent as one text takes less time than one that is made column by column.
    """

    def __init__(self, package: str, file_name: str) -> None:
        self._texts = {
            name: Template(text.decode()) for name, text in load_queries(package, file_name).items()
        }

    def __call__(self, name: str, frames: dict[str, DataFrame], **parts: str | int) -> DataFrame:
        """Return what a query gives of DataFrames, which it names in braces."""
        session: SparkSession = next(iter(frames.values())).sparkSession
        found = session.sql(self._texts[name].substitute(parts), None, **frames)
        if (plan := getattr(found, "_plan", None)) is not None:
            # A server of Spark Connect removes what was computed once no plan here refers to it.
            plan.frames = frames
        return found
