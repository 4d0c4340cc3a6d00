"""Fingerprints: a few numbers that stand for what a message is and says, and that are read first.

The server makes them, so that neither names nor contents are transferred. Spark makes them from the
columns of a read where the component's own code makes keys, and for messages in an archive.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from psycopg import sql
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from reservation.component import Component
from reservation.declaration.table import declarations
from reservation.postgres.queries import load_queries
from spark_jobs.analysis.keys import reserved_key, with_function_keys
from spark_jobs.analysis.verdicts.judging import Read, is_passes, number_of, own_name
from spark_jobs.common.declaration import Declaration, own_categories_of, passes_in, sources_of
from spark_jobs.snapshot import partitions
from spark_jobs.snapshot.progress import Consumed, Progress
from spark_jobs.source import columns, ranges
from spark_jobs.source.passes import PassesQuery

# Under each column's name its type in Spark:
TYPES = {
    "global_position": "bigint",
    "time": "timestamp",
    # The numbers of names, from 0, in a `Numbering`; null for other types and for types of events.
    "category": "int",
    "type": "int",
    # Whether it is the first of its stream; whether it is of another category and handled here. See
    # `columns.sql`.
    "is_first": "boolean",
    "is_subscribed": "boolean",
    # Of commands and reservations: hashes of pair and key, null without a key, and of the content.
    "key": "bigint",
    "says": "bigint",
    # Of events: what they follow; a hash of stream and type, null for most pseudo events. First
    # events have a key too, for the commands that initiate.
    "causation": "bigint",
    "kind": "bigint",
    # The hash of the cardinal id of its stream, where its partition says whether it was read.
    "cardinal": "bigint",
    # Where fingerprints are kept: a hash of its stream, its place in it and its id.
    "identity": "bigint",
}

_FINGERPRINTS = {
    name: text.decode()
    for name, text in load_queries("spark_jobs.analysis.verdicts", "fingerprints.sql").items()
}


def new_seed() -> int:
    """Return a seed of hashes that nobody can guess."""
    return secrets.randbits(63)


@dataclass(frozen=True, slots=True)
class Numbering:
    """Numbers in the place of names.

    Attributes:
        categories: the component's: commands, their copies, events, those that it subscribes to,
            and their passes.
        types: those of the commands that have keys.
    """

    categories: list[str]
    types: list[str]

    @classmethod
    def of(cls, component: Component) -> "Numbering":
        """Return the numbering of a component."""
        return cls(sources_of(component), list(Declaration.of(component).keys))

    def category(self, name: str) -> int:
        """Return the number of a category."""
        return self.categories.index(name)

    def type(self, name: str) -> int:
        """Return the number of a type."""
        return self.types.index(name)

    def consumed(self, progress: Progress) -> dict[int, Consumed]:
        """Return how far the consumers are, by the numbers of their categories."""
        return {self.category(name): one for name, one in progress.consumed.items()}


@dataclass(frozen=True, slots=True)
class FingerprintQuery(columns.CategoryQuery):
    """What is read of a category.

    Attributes:
        component: whose it is.
        seed: of the hashes; those of different seeds cannot be compared.
        progress: how far the consumers are that the fingerprints will be marked with; None if they
            are kept, and will be marked with any progress.
    """

    component: Component = field(kw_only=True)
    seed: int = field(kw_only=True)
    progress: Progress | None = field(kw_only=True)

    def expressions(self, category: sql.Composable) -> Mapping[str, sql.Composable]:
        """Return what makes each of the columns."""
        component, numbering = self.component, Numbering.of(self.component)
        declared = declarations(component)
        made = columns.expressions(
            [
                *("global_position", "time", "key_category", "key_stream"),
                *("causation", "version", "starts", "is_first", "is_subscribed"),
            ],
            category,
            self.declaration,
        )

        def part(name: str, **values: sql.Composable) -> sql.Composable:
            return sql.SQL(_FINGERPRINTS[name]).format(
                category=category, seed=sql.Literal(self.seed), **values
            )

        null = sql.SQL("NULL::bigint")
        numbers: dict[str, sql.Composable] = {
            name: sql.Literal(n) for n, name in enumerate(numbering.types)
        }
        by_stream = part("key_of_stream")
        parts: dict[str, sql.Composable] = {
            **{name: made[name] for name in ("global_position", "time")},
            "category": sql.Literal(numbering.category(self.category)),
            "type": part("type", numbers=columns.by_type(numbers)),
            "is_first": made["is_first"],
            "is_subscribed": sql.SQL("false"),
            "key": by_stream,
            "says": part("says", version=made["version"]),
            "causation": null,
            "kind": null,
            "cardinal": null,
            "identity": part("identity") if self.progress is None else null,
        }
        if asked := _asked(self.category, component, self.progress):
            first, last = map(sql.Literal, asked)
            parts["cardinal"] = part("cardinal", first=first, last=last)
        if self.category == declared.command_category:
            parts["key"] = part(
                "key_of_command",
                **{name: made[name] for name in ("key_category", "key_stream")},
            )
        elif self.category in declared.others:
            parts |= {"is_subscribed": made["is_subscribed"], "key": null, "says": null}
            parts["type"] = sql.SQL("NULL::integer")
        elif self.category == component.name:
            parts["key"] = by_stream if declared.own.initiates else null
            parts["says"] = null
            parts["type"] = sql.SQL("NULL::integer")
            parts["causation"] = made["causation"]
            own_names = {name: sql.Literal(own) for name, own in self.declaration.names.items()}
            parts["kind"] = part(
                "kind",
                starts=made["starts"],
                own_names=columns.by_type(own_names),
            )
        return {name: parts[name] for name in self.columns}


def _asked(
    category: str, component: Component, progress: Progress | None
) -> tuple[int, int] | None:
    """Return the range of global positions in which the cardinal ids of a category are needed."""
    if progress is not None:
        return progress.uneven(category)
    is_consumed = category != component.name and not passes_in(category)
    return (1, ranges.LAST) if is_consumed else None


def query_of(
    name: str,
    declaration: Declaration,
    component: Component,
    seed: int,
    progress: Progress | None,
) -> columns.CategoryQuery:
    """Return what is read of a category of a component, or of the passes of its consumers."""
    names, passes = list(TYPES), passes_in(name)
    if passes is None:
        return FingerprintQuery(
            name, names, declaration, component=component, seed=seed, progress=progress
        )
    consumer, category = passes
    number = Numbering.of(component).category(name)
    return PassesQuery(category, names, declaration, consumer=consumer, types=TYPES, number=number)


def of_messages(
    read: Read,
    component: Component,
    progress: Progress | None,
    app: str,
    app_dir: Path | None,
    seed: int | None = None,
) -> DataFrame:
    """Return the fingerprints of messages, as Spark makes them."""
    declared = declarations(component)
    declaration, numbering = Declaration.of(component), Numbering.of(component)
    wanted = ["global_position", "time", "category", "type", "is_first", "stream_name"]
    made = ["starts", "causation", "version", "content", "key_category", "key_stream"]
    if declaration.by_function:
        made.append("function_data")
    if declaration.subscriptions:
        made.append("is_subscribed")
    if progress is None:
        made += ["position", "id"]
    messages = with_function_keys(
        read(numbering.categories, [*wanted, *made]), declaration, app, app_dir
    )
    category, type_, stream = F.col("category"), F.col("type"), F.col("stream_name")
    event = own_name(type_, declaration.names)
    seeded = F.lit(new_seed() if seed is None else seed)
    was_sent, is_event = (
        category == declared.command_category,
        category == component.name,
    )
    is_own, is_pass = category.isin(*own_categories_of(component)), is_passes(category)
    is_subscribed = F.col("is_subscribed") if declaration.subscriptions else F.lit(False)
    pair = F.when(was_sent, F.col("key_category")).otherwise(category)
    named = (
        F.when(was_sent, F.col("key_stream"))
        .when(is_event, stream)
        .otherwise(reserved_key(declaration))
    )
    has_key = is_own & pair.isNotNull() & named.isNotNull()
    if not declared.own.initiates:
        has_key &= ~is_event
    asked = F.lit(False)
    for name in numbering.categories:
        if needed := _asked(name, component, progress):
            asked |= (category == name) & F.col("global_position").between(*needed)
    identity = F.lit(None).cast("bigint")
    if progress is None:
        identity = F.xxhash64(seeded, stream, "position", "id")

    return messages.select(
        "global_position",
        "time",
        number_of(category, numbering.categories).alias("category"),
        F.when(is_own & ~is_event, number_of(type_, numbering.types)).alias("type"),
        "is_first",
        is_subscribed.alias("is_subscribed"),
        F.when(has_key, F.xxhash64(seeded, pair, named)).alias("key"),
        # A hash passes over what is null, so a version is never in the place of the content.
        F.when(
            is_own & ~is_event,
            F.xxhash64(seeded, type_, F.coalesce("version", F.lit("")), "content"),
        ).alias("says"),
        F.when(is_event | is_pass, F.col("causation")).alias("causation"),
        F.when(is_event & F.col("starts"), F.xxhash64(seeded, stream, event)).alias("kind"),
        F.when(asked, partitions.hashed(stream)).alias("cardinal"),
        identity.alias("identity"),
    )
