"""Passes of messages that were read before.

A message may be read while it is pending, and be passed afterwards. Its pass is behind what was
read then, so it is looked for with the message: with each that still has to be handled, and with
each that became visible late (`spark_jobs.reconciliation.late`). Other messages need none.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from reservation.component import Component
from spark_jobs.analysis.verdicts.judging import Read
from spark_jobs.common.declaration import passes_of
from spark_jobs.reconciliation.incremental import watched_folder
from spark_jobs.reconciliation.reading import lookup
from spark_jobs.reconciliation.stored_state import State

_WATCHED = "category string, global_position bigint, is_cause boolean, is_copy boolean"


def of_known(
    spark: SparkSession,
    state: State,
    component: Component,
    read: Read,
    columns: Sequence[str],
    late: DataFrame | None,
) -> DataFrame | None:
    """Return the passes of messages that a state has read, and of late ones.

    Args:
        spark: the session.
        state: the state.
        component: the component.
        read: reads the store.
        columns: the columns of the passes to return.
        late: the late messages; None if there are none.

    Returns:
        The passes; None if there can be none, because there is no state yet, or no subscription.
    """
    manifest = state.judged
    if manifest is None or not component.subscribed:
        return None
    folder = state.folder / watched_folder(manifest.run, "effects")
    watched = spark.read.schema(_WATCHED).parquet(str(folder))
    # A pass has the negative of the position of its message.
    of_message = (-F.col("global_position")).alias("global_position")
    wanted = watched.where("is_cause AND is_copy").where(
        F.col("category").isin(*component.subscribed)
    )
    found = watched.where("global_position < 0").select("global_position")
    wanted = wanted.select(of_message).join(found, "global_position", "left_anti")
    if late is not None:
        is_subscribed = F.col("category").isin(*component.subscribed)
        wanted = wanted.union(late.where(is_subscribed).select(of_message))
    return lookup.at(read, wanted)(passes_of(component), columns)
