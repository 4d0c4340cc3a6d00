"""Proving the rows of a read model: they are compared with those of a rebuild, both ways."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import Connection, sql

from consumers.archived import Archives
from consumers.read_models.archives import archived_parts, check_whole
from consumers.read_models.comparing import MOST_NAMED, TableComparison, compare, name_rows
from consumers.read_models.rebuilding import Rebuilt, rebuild
from reservation.component import Component
from reservation.declaration.model_version import ModelVersion
from reservation.declaration.table import declarations
from reservation.errors import ArchiveError, StoreError
from reservation.messages.message import printable
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries
from reservation.read_models.comparison import Compare, ComparedTable
from reservation.read_models.made_versions import MadeVersion, made_version
from reservation.read_models.schemas import tables
from reservation.read_models.scratch import lock_scratch, remove_scratch

_QUERIES = load_queries("consumers.read_models")


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a comparison.

    Attributes:
        schema: that of the live tables.
        rebuilt: what the rebuild was made from.
        tables: the tables of both.
        missing_tables: the tables that only the rebuild has.
        unexpected_tables: those that only the live schema has.
    """

    schema: str
    rebuilt: Rebuilt
    tables: Sequence[TableComparison]
    missing_tables: Sequence[str] = ()
    unexpected_tables: Sequence[str] = ()

    @property
    def is_proved(self) -> bool:
        """Whether the live rows are those of the rebuild."""
        return not (
            self.missing_tables or self.unexpected_tables or any(one.differs for one in self.tables)
        )


def verify(
    connection: Connection[Any], component: Component[Any], archives: Archives | None = None
) -> Verification:
    """Rebuild the declared version in a scratch schema, and compare it with the live one.

    Messages that were removed from the store are read from archives. All is in one transaction.
    """
    verification = None
    with translated(), connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        model = check_verifiable(connection, component)
        lock_scratch(connection, model)
        rebuilt = _rebuild(connection, component, model, archives)
        verification = _verification(
            connection,
            model,
            rebuilt,
            lambda compared: [compare(connection, table) for table in compared],
        )
        raise psycopg.Rollback
    assert verification is not None  # noqa: S101  the transaction ends without an error
    return verification


def verify_by(
    compare_by: Compare,
    connections: Callable[[], Connection[Any]],
    component: Component[Any],
    archives: Archives | None = None,
) -> Verification:
    """Do the same with something else that compares tables, over connections of its own.

    So the rebuild is committed, and removed in the end. Its connection, and the one that holds the
    snapshot of the live rows, are in autocommit until they begin a transaction.
    """
    with connections() as live, connections() as builder, translated(), live.transaction():
        live.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        ((snapshot, *_),) = live.execute(_QUERIES["hold_snapshot"]).fetchall()
        model = check_verifiable(live, component)
        lock_scratch(live, model)
        try:
            with builder.transaction():
                builder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                builder.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(snapshot))
                rebuilt = _rebuild(builder, component, model, archives)
            return _verification(
                builder,
                model,
                rebuilt,
                lambda compared: [
                    name_rows(live, builder, table, compare_by(table, snapshot, MOST_NAMED))
                    for table in compared
                ],
            )
        finally:
            with builder.transaction():
                remove_scratch(builder, model)


def check_verifiable(connection: Connection[Any], component: Component[Any]) -> ModelVersion:
    """Refuse what is no version of a read model, or one without tables."""
    model = declarations(component).model
    if model is None:
        raise StoreError(
            f"{component.name} is a component, which has no tables to verify; compare its messages "
            f"with `reservation reconcile`"
        )
    if made_version(connection, model) is None:
        raise StoreError(
            f"Version {model.version} of the read model {model.name} was never run; start it first"
        )
    return model


def _rebuild(
    connection: Connection[Any],
    component: Component[Any],
    model: ModelVersion,
    archives: Archives | None,
) -> Rebuilt:
    made = made_version(connection, model)
    if made is not None:
        _check_archives(connection, component, made, archives)
    remove_scratch(connection, model)
    return rebuild(connection, component, model, archives)


def _verification(
    connection: Connection[Any],
    model: ModelVersion,
    rebuilt: Rebuilt,
    compare_all: Callable[[Sequence[ComparedTable]], Sequence[TableComparison]],
) -> Verification:
    live = {table.name: table for table in tables(connection, model.schema)}
    made = {table.name: table for table in tables(connection, rebuilt.schema)}
    compared = [
        ComparedTable(
            name,
            model.schema,
            rebuilt.schema,
            made[name].key,
            [column for column in made[name].columns if column in live[name].columns],
        )
        for name in sorted(live.keys() & made)
    ]
    return Verification(
        model.schema,
        rebuilt,
        compare_all(compared),
        sorted(made.keys() - live),
        sorted(live.keys() - made),
    )


def _check_archives(
    connection: Connection[Any],
    component: Component[Any],
    made: MadeVersion,
    archives: Archives | None,
) -> None:
    """Refuse archives that a version was not built from, or that lack messages."""
    parts = [] if archives is None else archived_parts(connection, component, archives)
    reach = {part.category: part.last for part in parts}
    for part in made.archived:
        if reach.get(part.category, 0) < part.last:
            raise ArchiveError(
                f"Version {made.version} of the read model {made.model} was built from an archive "
                f"of {printable(part.category)} up to global position {part.last}; name that "
                f"archive with --archive"
            )
    if archives is not None:
        check_whole(connection, component, archives)
