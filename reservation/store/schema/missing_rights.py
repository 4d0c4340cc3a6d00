"""Roles that lack a right of their kind, because the schema has got more since they were made.

`reservation.store.schema.roles` gives the rights. An upgrade may bring tables and functions; what a
role may do with these is granted when it is made a sender, a consumer or an auditor again.
"""

import shlex
from dataclasses import dataclass
from typing import Any

from psycopg import Connection

from reservation.messages.message import printable
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("reservation.store.schema", "missing_rights.sql")


@dataclass(frozen=True, slots=True)
class LackingRole:
    """A role that lacks rights.

    Attributes:
        role: its name.
        kind: what it was made: sender, consumer or auditor.
        lacks: the rights, such as ``EXECUTE on reservation.take_part``.
        categories: those that a sender may write to.
    """

    role: str
    kind: str
    lacks: tuple[str, ...]
    categories: tuple[str, ...]

    @property
    def command(self) -> str:
        """The command that grants them."""
        words = ["reservation", "store", "grants", self.kind, self.role]
        words += [word for category in self.categories for word in ("--category", category)]
        return printable(shlex.join(words))


def lacking_roles(connection: Connection[Any]) -> list[LackingRole]:
    """Return the roles that lack a right of their kind, by name.

    Args:
        connection: of a role that may read the schema ``reservation``.
    """
    with translated():
        rows = connection.execute(_QUERIES["missing"]).fetchall()
    return [
        LackingRole(role, kind, tuple(lacks), tuple(categories))
        for role, kind, lacks, categories in rows
    ]
