"""Removing the rows of a component that does not run any more from the schema ``reservation``.

Otherwise the component would stay in `reservation status` with a growing lag, and its rows would be
kept for ever. The messages of the log stay, and so does what people decided about them:
the letters of messages that were handled with other data, and accepted findings.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import Connection, sql

from consumers.group.administration import PATIENCE
from reservation.errors import StoreError
from reservation.idempotence.state_based.states import state_category
from reservation.messages.message import printable
from reservation.messages.stream_name import ID_SEPARATOR
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("consumers.group", "retiring.sql")


@dataclass(frozen=True, slots=True)
class Retired:
    """A component's removal, done or planned.

    Attributes:
        component: its name.
        categories: the categories that it had read, and whose rows were removed.
        removed: how many rows, by kind, without empty kinds.
    """

    component: str
    categories: Sequence[str]
    removed: dict[str, int]


def retire(
    connection: Connection[Any],
    component: str,
    categories: Sequence[str] = (),
    *,
    apply: bool,
    with_open_letters: bool = False,
) -> Retired:
    """Remove the rows of a component, in one transaction."""
    with translated(), connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        connection.execute("SELECT set_config('lock_timeout', %s, true)", [PATIENCE])
        chosen = _chosen(connection, component, categories)
        names = {"consumer": component, "categories": list(chosen), **_prefixes(component)}
        if apply:
            connection.execute(_QUERIES["lock"], names)
        _refuse_live(connection, component, names)
        if not with_open_letters:
            _refuse_letters(connection, component, names)
        rows = connection.execute(_QUERIES["count"], names).fetchall()
        if not categories:
            rows += connection.execute(_QUERIES["count_all"], names).fetchall()
        removed = {kind: count for kind, count in rows if count}
        if not (chosen or removed):
            raise StoreError(_unknown(connection, component))
        if apply:
            _remove(connection, names, entirely=not categories)
    return Retired(component, chosen, removed)


def _remove(connection: Connection[Any], names: dict[str, Any], *, entirely: bool) -> None:
    """Remove the rows, and with all of them the tables of days of processed messages."""
    days = connection.execute(_QUERIES["processed_days"], names).fetchall() if entirely else []
    for name, query in _QUERIES.items():
        if name.startswith("remove_") and (entirely or not name.startswith("remove_all_")):
            connection.execute(query, names)
    for (day,) in days:
        connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier("reservation", day)))


def _chosen(
    connection: Connection[Any], component: str, categories: Sequence[str]
) -> Sequence[str]:
    stored = [row[0] for row in connection.execute(_QUERIES["categories"], {"consumer": component})]
    for category in categories:
        if category not in stored:
            raise StoreError(
                f"The store keeps nothing of the component {component} in {category!r}; it has "
                f"read {', '.join(map(printable, stored)) or 'nothing'}"
            )
    return categories or stored


def _prefixes(component: str) -> dict[str, str]:
    """Return the prefixes of the names of the component's streams and of its states'."""
    state = state_category(component)
    return {"stream": component + ID_SEPARATOR, "state": state + ID_SEPARATOR}


def _refuse_live(connection: Connection[Any], component: str, names: dict[str, Any]) -> None:
    live = [process for (process,) in connection.execute(_QUERIES["live"], names)]
    if live:
        raise StoreError(
            f"The component {component} is running in {', '.join(map(printable, live))}; "
            f"stop it first"
        )


def _refuse_letters(connection: Connection[Any], component: str, names: dict[str, Any]) -> None:
    ((count,),) = connection.execute(_QUERIES["open_letters"], names).fetchall()
    if count:
        raise StoreError(
            f"The component {component} has {count:,} open dead letters, whose messages were never "
            f"handled; retry or discard them, or give --with-open-letters to remove them too"
        )


def _unknown(connection: Connection[Any], component: str) -> str:
    names = [printable(row[0]) for row in connection.execute(_QUERIES["consumers"])]
    return (
        f"The store keeps nothing of a component {component!r}; it keeps rows of "
        f"{', '.join(names) or 'none'}"
    )
