"""The check that a component's events are declared.

An entity cannot be loaded if its stream holds an event of a type that nobody declared: what the
event said would be missing from the entity. Each command for such an entity would be a dead letter,
so a component is not started if a sample of its events shows such a type.
"""

from typing import Any

from psycopg import Connection

from reservation.component import Component
from reservation.declaration.table import declarations
from reservation.errors import DeclarationError
from reservation.messages.message import printable
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("reservation.maintenance")

# So many places of the category are looked at, from its first event to its last, and so many events
# at each of them.
PLACES = 200
AT_EACH = 10

# How many types an error names.
_NAMED = 5


def check_event_types(connection: Connection[Any], component: Component) -> None:
    """Refuse a declaration that does not know the events that are stored.

    The category is sampled over its whole length, in one statement.
    """
    unknown = unknown_types(connection, component)
    if not unknown:
        return
    named = ", ".join(printable(type_) for type_ in unknown[:_NAMED])
    more = f" and {len(unknown) - _NAMED} more" if len(unknown) > _NAMED else ""
    first = printable(unknown[0])
    raise DeclarationError(
        f"The category {component.name} has events of types that its component does not "
        f"declare: {named}{more}; its entities cannot be loaded without them: if the class was "
        f"renamed, declare message(…, former_names={first!r}); else declare a projector, or "
        f"{component.name}.message(…) if it does not change the entity, or let it pass with "
        f"{component.name}.ignore({first!r})"
    )


def unknown_types(connection: Connection[Any], component: Component) -> list[str]:
    """Return the types of events in a sample that a component does not declare."""
    declared = declarations(component)
    if not declared.loads_entities:
        return []
    with translated(), connection.transaction():
        connection.execute(_QUERIES["sample_settings"])
        rows = connection.execute(
            _QUERIES["sample_types"],
            {"category": component.name, "places": PLACES, "at_each": AT_EACH},
        ).fetchall()
    return [type_ for type_, _ in rows if not declared.projection.knows(type_)]
