"""Events of one type and stream that are one effect of their cause, by their ids.

The framework derives the ids of events from their cause, their stream and their number among the
events that the cause's handling writes to that stream (`followed_id` and `further_id` in
`reservation.messages.message`). The number is never higher than the event's position in its stream,
so numbers from 0 upwards are tried until no id is left that could be derived.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyspark.sql import DataFrame

from reservation.messages.message import followed_id, further_id
from spark_jobs.facts.keys import ANY
from spark_jobs.session.session import parallelism

# So many siblings of an event may have been deleted before it.
_DELETED = 1_000

_SCHEMA = pa.schema([("grp", pa.int64()), ("position", pa.int64())])
_VERSION = 14  # where a UUID as text has its version

COLUMNS = ("grp", "position", "kind", "place", "id", "stream_name", "cause_id", "entity")


def effects_again(events: DataFrame) -> DataFrame:
    """Return the events that are another effect than the first of their kind and cause.

    The stream of the cause's entity is `ANY` if the code of today cannot tell it. Then any id of
    version 5 counts as derived.
    """
    by_group = events.select(*COLUMNS).repartition(parallelism(events.sparkSession), "grp")
    ordered = by_group.sortWithinPartitions("grp", "kind", "place")
    return ordered.mapInArrow(_again, "grp bigint, position bigint")


def _again(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Find them group by group; a stream of Arrow for each group would take longer than that."""
    rows = (row for batch in batches for row in batch.to_pylist())
    for _, group in groupby(rows, itemgetter("grp")):
        if again := _of_group([*group]):
            yield pa.RecordBatch.from_pylist(again, _SCHEMA)


def _of_group(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, int]]:
    by_stream = defaultdict[str, list[Mapping[str, Any]]](list)
    for row in rows:
        by_stream[row["stream_name"]].append(row)
    derived = set[str]()
    for stream, events in by_stream.items():
        derived |= _derived(rows[0], stream, events)
    by_kind = (events for _, events in groupby(rows, itemgetter("kind")))
    return [row for events in by_kind for row in _further_effects(events, derived)]


def _further_effects(
    rows: Iterable[Mapping[str, Any]], derived: Collection[str]
) -> Iterator[dict[str, int]]:
    first, *others = rows
    for row in others:
        if not (first["id"] in derived and row["id"] in derived):
            yield {"grp": row["grp"], "position": row["position"]}


def _derived(
    cause: Mapping[str, Any], stream: str, events: Sequence[Mapping[str, Any]]
) -> set[str]:
    """Return the ids of events of a stream that were derived from their cause."""
    candidates = {row["id"]: row["place"] for row in events if row["id"][_VERSION] == "5"}
    if cause["entity"] == ANY:
        return {*candidates}
    # Integers take half of the time that the texts of ids would.
    missing = {UUID(id_).int for id_ in candidates}
    for number in range(1 + min(len(events) + _DELETED, max(candidates.values(), default=0))):
        if not missing:
            break
        missing.discard(followed_id(cause["cause_id"], stream, number).int)
        if cause["entity"] is not None:
            missing.discard(further_id(cause["cause_id"], cause["entity"], stream, number).int)
    return {id_ for id_ in candidates if UUID(id_).int not in missing}
