"""Checking that archives and the store have all messages of what a read model reads."""

from typing import Any

from psycopg import Connection

from consumers.archived import ArchivedMessages, Archives
from consumers.runtime.observability.logs import Log
from reservation.component import Component
from reservation.declaration.table import declarations
from reservation.errors import ArchiveError
from reservation.messages.message import printable
from reservation.postgres.arrays import fetch_all
from reservation.postgres.queries import load_queries
from reservation.read_models.made_versions import ArchivedPart, made_version
from reservation.store.schema.identity import store_id

_QUERIES = load_queries("consumers.read_models")

# Messages behind the end of an archive that are looked at. If some were removed that it lacks, what
# remains there are the last ones of their streams.
LOOKED_AT = 10_000


def archived_parts(
    connection: Connection[Any], component: Component[Any], archives: Archives
) -> list[ArchivedPart]:
    """Return the parts of a read model's categories that are in archives of this store."""
    store = store_id(connection)
    archives.require_store(None if store is None else str(store))
    names = declarations(component).subscribed_categories
    read = {name: archives.category(name) for name in names}
    parts = [
        ArchivedPart(name, archived.first, archived.last, archived.count)
        for name, archived in read.items()
        if archived is not None
    ]
    if not parts:
        raise ArchiveError(
            f"The archive in {archives} has none of what {component.name} reads, "
            f"{', '.join(map(printable, names))}; it has "
            f"{', '.join(map(printable, archives.categories))}"
        )
    return parts


def check_whole(connection: Connection[Any], component: Component[Any], archives: Archives) -> None:
    """Refuse archives that are damaged, or do not reach the messages that the store has."""
    archives.require_whole()
    for category in declarations(component).subscribed_categories:
        archived = archives.category(category)
        for position, message_id in archived.ends if archived is not None else ():
            values = {"category": category, "position": position, "message_id": message_id}
            ((holds,),) = fetch_all(connection, _QUERIES["holds"], values)
            if not holds:
                raise ArchiveError(
                    f"The store does not hold the last message of {printable(category)} that is in "
                    f"the archive in {archives}, at global position {position}: the archive is "
                    f"of another store, or an old copy; name the newest one of this store"
                )
        _check_seam(connection, category, archived, archives)


def warn_of_removed(connection: Connection[Any], component: Component[Any]) -> None:
    """Warn that a version which is about to be made will lack what was removed from the store.

    That is seen where the first messages of a category are not the first ones of their streams.
    """
    model = declarations(component).model
    if model is None or made_version(connection, model) is not None:
        return
    for category in declarations(component).subscribed_categories:
        values = {"category": category, "after": 0, "limit": LOOKED_AT}
        if fetch_all(connection, _QUERIES["gaps"], values):
            Log(component.name, category).warning(
                "messages_removed",
                hint="the rows will lack what these would change; if they are archived, build the "
                "next version with --archive",
            )


def is_behind(
    connection: Connection[Any], component: Component[Any], parts: list[ArchivedPart]
) -> bool:
    """Return whether any consumer of a read model has yet to read messages of an archive."""
    for part in parts:
        values = {"consumer": component.name, "category": part.category, "last": part.last}
        ((behind,),) = fetch_all(connection, _QUERIES["is_behind"], values)
        if behind:
            return True
    return False


def _check_seam(
    connection: Connection[Any],
    category: str,
    archived: ArchivedMessages | None,
    archives: Archives,
) -> None:
    """Refuse a gap behind the end of what is archived of a category."""
    after = 0 if archived is None else archived.last
    values = {"category": category, "after": after, "limit": LOOKED_AT}
    wanted = {(stream, n) for stream, n in fetch_all(connection, _QUERIES["gaps"], values)}
    lacking = wanted if archived is None or not wanted else archived.lacking(wanted)
    if lacking:
        stream, position = min(lacking)
        raise ArchiveError(
            f"Messages of {printable(category)} were removed from the store that the archive in "
            f"{archives} lacks, such as the one at position {position} of {printable(stream)}; "
            f"name the archive that has them too, or continue this one with `reservation archive`"
        )
