"""The records of messages that a component's consumers keep beside the log.

Processed messages, revisions and states decide whether a message is a duplicate. In a store that
was cleared, restored or replaced they are about messages that are not in its log, and a new message
could be taken for a duplicate of one of those. They are rebuilt when every message of the log is
handled again: effects that are in the log already are recognized by the ids of the events.
"""

from collections.abc import Mapping
from typing import Any

from psycopg import Connection

from reservation.component import Component
from reservation.idempotence.state_based.states import state_category
from reservation.messages.stream_name import ID_SEPARATOR
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("consumers.group", "memory.sql")


def remembered(connection: Connection[Any], component: Component) -> Mapping[str, int]:
    """Return how much the consumers of a component remember, by kind, without empty kinds."""
    with translated():
        rows = connection.execute(_QUERIES["count"], _parameters(component)).fetchall()
    return {kind: count for kind, count in rows if count}


def forget(connection: Connection[Any], component: Component) -> None:
    """Remove what consumers remember; dead letters and passes only of messages not in the log."""
    with translated():
        for name, query in _QUERIES.items():
            if name.startswith("forget_"):
                connection.execute(query, _parameters(component))


def _parameters(component: Component) -> dict[str, str]:
    category = state_category(component.name)
    after = chr(ord(ID_SEPARATOR) + 1)  # sorts after every stream of the category
    return {
        "consumer": component.name,
        "first": category + ID_SEPARATOR,
        "bound": category + after,
    }
