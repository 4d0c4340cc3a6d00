"""What passes between the verification of a read model and what compares large tables for it."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple


class ComparedTable(NamedTuple):
    """A table of a version, which is in two schemas.

    Attributes:
        name: its name.
        live: the schema of the consumers' rows.
        rebuilt: the schema of those of a rebuild.
        key: the columns of its primary key.
        columns: the columns that both have.
    """

    name: str
    live: str
    rebuilt: str
    key: Sequence[str]
    columns: Sequence[str]


class RowPlace(NamedTuple):
    """Where a row is stored.

    Attributes:
        relation: the number of the table, or of its partition.
        row: the row's ``ctid`` there.
    """

    relation: int
    row: str


class DifferingPlaces(NamedTuple):
    """The two rows of a key, of which one may be missing."""

    live: RowPlace | None
    rebuilt: RowPlace | None


class TableDifferences(NamedTuple):
    """The differences of a table.

    Attributes:
        counts: how many rows are ``missing``, ``unexpected`` or ``differing``.
        named: the places of some of these.
    """

    counts: Mapping[str, int]
    named: Sequence[DifferingPlaces]


# Compares a table: the live rows under an exported snapshot, those of the rebuild as they are
# committed. Names no more rows than so many.
Compare = Callable[[ComparedTable, str, int], TableDifferences]
