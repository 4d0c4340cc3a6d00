"""The facts of archived messages, by the rules of ``facts.sql``."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from reservation.component import Component
from reservation.declaration.table import declarations
from reservation.messages import stream_name
from spark_jobs.common.declaration import Declaration
from spark_jobs.facts import keys
from spark_jobs.facts.codes import Codes, MessageKind, code
from spark_jobs.facts.content import canonical
from spark_jobs.facts.hashing import hashed
from spark_jobs.facts.query import FACT, OF_CODE

# What facts are made of, as columns of messages.
NEEDED = (
    *("category", "global_position", "position", "stream_name", "type", "time", "data"),
    *("version", "key_category", "key_stream", "causation", "starts", "is_first"),
    *("is_subscribed", "function_data"),
)

_TEXTS = ("key", "digest", "kind")


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes facts of messages, on Spark's workers.

    Attributes:
        app, app_dir: the app path of the component, and its folder.
        seed: of the hashes.
        columns: those to make, of `FACT`.
        by_time: whether the age of a message decides whether it was read.
    """

    app: str
    app_dir: Path | None
    seed: int
    columns: tuple[str, ...]
    by_time: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the facts of batches with the columns `NEEDED`."""
        rules = _FactRules(keys.loaded(self.app, self.app_dir))
        for batch in batches:
            yield self._facts(rules, batch)

    def _facts(self, rules: "_FactRules", batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = [rules.fact(row) for row in batch.to_pylist()]
        time = batch.column("time").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        of_code = [batch.column(name) for name in OF_CODE]
        made = {
            "position": batch.column("global_position"),
            "place": batch.column("position"),
            "time": time,
        }
        for name in ("code", "cause", "cardinal", *_TEXTS):
            if name in _TEXTS:
                texts = pa.array([row.get(name) for row in rows], pa.string())
                if name == "key":
                    is_function = batch.column("function_data").is_valid()
                    of_function = keys.keys(self.app, self.app_dir, *of_code)
                    texts = pa.compute.if_else(is_function, of_function, texts)
                made[name] = hashed(texts, self.seed)
            else:
                made[name] = pa.array([row.get(name) for row in rows], pa.int64())
        if self.by_time:
            made["cardinal"] = time
        types = {"int": pa.int32(), "bigint": pa.int64()}
        return pa.RecordBatch.from_pydict(
            {name: made[name].cast(types[FACT[name]]) for name in self.columns}
        )


class _FactRules:
    """Makes facts of a component's messages."""

    def __init__(self, component: Component) -> None:
        self._name = component.name
        self._declared = declarations(component)
        self._declaration = Declaration.of(component)
        self._codes = codes = Codes.of(component)
        self._of_commands = codes.of_commands()
        self._of_copies = {name: codes.of_copies(name) for name in codes.reserved}
        self._start = codes.pairs.index(self._name) if self._declared.own.initiates else 0

    def fact(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return what is a number, and the texts of what is hashed."""
        category, stream, type_ = row["category"], row["stream_name"], row["type"]
        cardinal = _cardinal(stream)
        if category == self._declared.command_category:
            key = None
            if row["key_stream"] is not None:
                key = f"{row['key_category']}\n{row['key_stream']}"
            of_type = self._of_commands.get(type_, int(MessageKind.CAUSE))
            return {"code": of_type, "key": key, "digest": self._says(row), "cardinal": cardinal}
        if category == self._name:
            return self._event(row)
        if category in self._codes.subscribed:
            number = code(MessageKind.SUBSCRIBED, self._codes.subscribed.index(category))
            taken = number if row["is_subscribed"] else int(MessageKind.CAUSE)
            return {"code": taken, "cardinal": cardinal}
        wrong = code(MessageKind.WRONG, self._codes.pairs.index(category))
        return {
            "code": self._of_copies[category].get(type_, wrong),
            "key": f"{category}\n{stream}",
            "digest": self._says(row),
            "cause": row["causation"],
            "cardinal": cardinal,
        }

    def _event(self, row: dict[str, Any]) -> dict[str, Any]:
        if not row["starts"]:
            return {"code": int(MessageKind.PSEUDO), "cause": row["causation"]}
        own = self._declaration.names.get(row["type"], row["type"])
        fact = {"cause": row["causation"], "kind": f"{row['stream_name']} {own}"}
        if self._declared.own.initiates and row["is_first"]:
            key = f"{row['category']}\n{row['stream_name']}"
            return {**fact, "code": code(MessageKind.START, self._start), "key": key}
        return {**fact, "code": int(MessageKind.EVENT)}

    def _says(self, row: dict[str, Any]) -> str:
        key = self._declaration.keys.get(row["type"])
        content = canonical(row["data"], () if key is None else key.ignoring)
        return f"{row['type']} {row['version'] or ''} {content}"


def _cardinal(stream: str) -> int | None:
    _, separator, ids = stream.partition(stream_name.ID_SEPARATOR)
    if not separator:
        return None
    id_ = ids.partition(stream_name.COMPOUND_SEPARATOR)[0]
    digest = hashlib.md5(id_.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:8], signed=True)
