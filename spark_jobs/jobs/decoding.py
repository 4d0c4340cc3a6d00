"""Decode every message of a component's categories, on Spark's workers, and count what cannot be.

Each part of a read becomes one tally for each category, so only these travel back.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from reservation.component import Component
from reservation.inspection.tally import Inspector, Tally, declared_categories
from reservation.messages.message import StoredMessage
from spark_jobs.facts.keys import loaded

# Reads columns of categories.
Read = Callable[[Sequence[str], Sequence[str]], DataFrame]

_READ = ("category", "stream_name", "type", "position", "global_position", "data", "metadata")
_TALLIES = "category string, tally string"
_SCHEMA = pa.schema([("category", pa.string()), ("tally", pa.string())])
_UNKNOWN_TIME = datetime.fromtimestamp(0, UTC)  # no class and no key depends on it


def tallies(
    read: Read, component: Component[Any], app: str, app_dir: Path | None
) -> dict[str, Tally]:
    """Return what is found of all messages of a component, by category."""
    categories = list(declared_categories(component))
    found = {category: Tally() for category in categories}
    rows = read(categories, _READ).mapInArrow(_taking(app, app_dir), _TALLIES)
    for row in rows.collect():
        found[row["category"]].add(Tally.from_json(row["tally"]))
    return found


def _taking(
    app: str, app_dir: Path | None
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def take(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        component = loaded(app, app_dir)
        inspectors = {name: Inspector(component, name) for name in declared_categories(component)}
        found = {name: Tally() for name in inspectors}
        for batch in batches:
            messages = _by_category(batch)
            for name, of_category in messages.items():
                found[name].add(inspectors[name].tally(of_category))
        yield pa.RecordBatch.from_pydict(
            {"category": list(found), "tally": [tally.to_json() for tally in found.values()]},
            schema=_SCHEMA,
        )

    return take


def _by_category(batch: pa.RecordBatch) -> dict[str, list[StoredMessage]]:
    """Return the messages of a batch, by their categories."""
    messages: defaultdict[str, list[StoredMessage]] = defaultdict(list)
    columns = [batch.column(name).to_pylist() for name in _READ]
    for category, stream, type_, position, at, data, metadata in zip(*columns, strict=True):
        message = StoredMessage("", stream, type_, position, at, data, metadata, _UNKNOWN_TIME)
        messages[category].append(message)
    return messages
