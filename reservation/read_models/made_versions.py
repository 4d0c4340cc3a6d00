"""The versions of read models that there are, as the comments of their schemas say.

So a backup, a restore and a ``DROP SCHEMA`` take that along, and there is no table of versions that
could say otherwise.
"""

import json
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from psycopg import Connection

from reservation.declaration.model_version import ModelVersion, schema_of
from reservation.errors import ArchiveError
from reservation.messages.message import printable
from reservation.postgres.error_translation import translated
from reservation.read_models.catalog import QUERIES


class ArchivedPart(NamedTuple):
    """The part of a category that a version is built from by an archive.

    Attributes:
        category: its name.
        first, last: the global positions of the first and last message.
        messages: how many there are.
    """

    category: str
    first: int
    last: int
    messages: int


class MadeVersion(NamedTuple):
    """A version of a read model that has tables.

    Attributes:
        model: the name of the read model.
        version: the number of the version.
        is_shown: whether the views show it.
        categories: those that it reads.
        archived: the parts of them that it is built from by an archive.
    """

    model: str
    version: int
    is_shown: bool
    categories: tuple[str, ...] = ()
    archived: tuple[ArchivedPart, ...] = ()

    @property
    def schema(self) -> str:
        """The schema of its tables, and the name of its consumers."""
        return schema_of(self.model, self.version)


def versions(connection: Connection[Any], model: str | None = None) -> list[MadeVersion]:
    """Return the versions that have tables, of one read model or of all."""
    with translated():
        rows = connection.execute(QUERIES["versions"], {"model": model}).fetchall()
    return [_made(model, version, shown, sources) for model, version, shown, sources in rows]


def made_version(connection: Connection[Any], model: ModelVersion) -> MadeVersion | None:
    """Return a version as it was made; None if it has no tables."""
    found = {made.schema: made for made in versions(connection, model.name)}
    return found.get(model.schema)


def tables_comment(
    model: ModelVersion, categories: Sequence[str], archived: Sequence[ArchivedPart] = ()
) -> str:
    """Return the comment of a schema of tables."""
    parts: dict[str, object] = dict.fromkeys(sorted(categories))
    parts |= {category: numbers for category, *numbers in archived}
    sources = json.dumps(parts if archived else list(parts))
    of = f" from {sources}" if categories else ""
    return f"Read model {model.name}: tables of version {model.version}{of}"


def refuse_without_archive(
    connection: Connection[Any],
    model: ModelVersion,
    categories: Collection[str],
    given: Sequence[ArchivedPart] = (),
) -> None:
    """Refuse to go on with a version while it needs an archive that reaches further than given."""
    made = made_version(connection, model)
    ends = {part.category: part.last for part in given}
    for part in made.archived if made is not None else ():
        if part.category not in categories or ends.get(part.category, 0) >= part.last:
            continue
        values = {"consumer": model.schema, "category": part.category}
        ((position,),) = connection.execute(QUERIES["lowest_position"], values).fetchall()
        if position < part.last:
            raise ArchiveError(
                f"Version {model.version} of the read model {model.name} is built from an archive "
                f"of {printable(part.category)} up to global position {part.last}, and has handled "
                f"it up to {position}; name that archive with --archive"
            )


def _made(model: str, version: int, shown: bool, text: str) -> MadeVersion:
    sources = json.loads(text)
    archived = [
        ArchivedPart(category, *numbers)
        for category, numbers in (sources.items() if isinstance(sources, dict) else ())
        if numbers is not None
    ]
    return MadeVersion(model, version, shown, tuple(sources), tuple(archived))
