"""Pausing and resuming what consumers do, in transactions of their own.

Nothing is stopped here: each consumer sees within a second what is paused, also one that is started
later.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec
from psycopg import Connection

from consumers.pauses.pause import PauseError, Scope, StoredPause
from reservation.inspection.process_declaration import ProcessDeclaration
from reservation.messages.message import printable
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("consumers.pauses")

# How many names a refusal lists.
_SHOWN = 20


def pause(
    connection: Connection[Any], scope: Scope, reason: str, *, on_behalf_of: str | None = None
) -> StoredPause:
    """Pause something that is not paused; `on_behalf_of` is who asked the connected program."""
    reason = reason.strip()
    if not reason:
        raise PauseError("Give a reason for the pause; it is shown to whoever looks")
    with translated(), connection.transaction():
        _check(connection, scope)
        values = asdict(scope) | {"reason": reason, "on_behalf_of": on_behalf_of}
        rows = connection.execute(_QUERIES["pause"], values).fetchall()
        if not rows:
            known = next((one for one in read_pauses(connection) if one.scope == scope), None)
            by = "" if known is None else f" by {printable(known.paused_by)}"
            raise PauseError(f"{scope} is paused{by} already; nothing was changed")
        connection.execute(_QUERIES["notify"])
    return _pause(*rows[0])


def resume(connection: Connection[Any], scope: Scope, *, every: bool = False) -> list[StoredPause]:
    """Resume what is paused under exactly these names, or all pauses of a component."""
    with translated(), connection.transaction():
        values = asdict(scope) | {"every": every}
        resumed = [_pause(*row) for row in connection.execute(_QUERIES["resume"], values)]
        if not resumed:
            _check(connection, scope)
            raise PauseError(_nothing(scope, read_pauses(connection, scope.component)))
        connection.execute(_QUERIES["notify"])
    return sorted(resumed, key=_order)


def read_pauses(connection: Connection[Any], component: str | None = None) -> list[StoredPause]:
    """Return the pauses of all components or of one, those of the most first."""
    with translated():
        rows = connection.execute(_QUERIES["stored"], {"component": component}).fetchall()
    return [_pause(*row) for row in rows]


def _order(pause: StoredPause) -> tuple[str, ...]:
    scope = pause.scope
    return scope.component, scope.category or "", scope.type or "", scope.entity or ""


def _check(connection: Connection[Any], scope: Scope) -> None:
    """Refuse names that the store does not know."""
    known: dict[str, list[str]] = {}
    for component, category in connection.execute(_QUERIES["categories"]).fetchall():
        known.setdefault(component, []).append(category)
    if scope.component not in known:
        raise PauseError(_unknown(f"No consumer is named {scope.component}", known))
    categories = known[scope.component]
    if scope.category not in (None, *categories):
        what = f"{scope.component} reads no category {scope.category}"
        raise PauseError(_unknown(what, categories))
    if scope.type is None:
        return
    rows = connection.execute(_QUERIES["declared"], {"component": scope.component}).fetchall()
    types = sorted({type_ for (text,) in rows for type_ in _types(text)})
    if types and scope.type not in types:  # of one that nobody runs they are not known
        raise PauseError(_unknown(f"{scope.component} handles no type {scope.type}", types))


def _types(declaration: str) -> list[str]:
    """Return the types of the messages that a process handles."""
    try:
        declared = ProcessDeclaration.from_json(declaration)
    except msgspec.MsgspecError:  # of another version
        return []
    handled = [declared.commands, *declared.subscriptions.values()]
    return [name for types in handled for one in types.values() for name in one.names]


def _unknown(what: str, known: Sequence[str] | dict[str, list[str]]) -> str:
    names = [printable(name) for name in known]
    more = "" if len(names) <= _SHOWN else f" and {len(names) - _SHOWN} more"
    return f"{printable(what)}; there is {', '.join(names[:_SHOWN]) or 'none'}{more}"


def _nothing(scope: Scope, others: Sequence[StoredPause]) -> str:
    """Return why there is nothing to resume."""
    if not others:
        return f"{scope} is not paused; nothing was changed"
    named = "; ".join(str(one.scope) for one in others[:_SHOWN])
    return f"{scope} is not paused by itself; paused is {named}; nothing was changed"


# Any: the columns of a pause, in their order.
def _pause(component: str, category: Any, type_: Any, entity: Any, *rest: Any) -> StoredPause:
    return StoredPause(Scope(component, category, type_, entity), *rest)
