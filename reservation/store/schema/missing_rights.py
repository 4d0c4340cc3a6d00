"""Roles that lack a right of their kind.

`reservation.store.schema.roles` gives the rights. An upgrade may bring tables and functions, which
programs of the former version use too, within functions that they know. So it grants what is new to
roles that had every right of their kind. Others are left as they are.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import Connection

from reservation.messages.message import printable
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("reservation.store.schema", "missing_rights.sql")


@dataclass(frozen=True, slots=True)
class KnownRole:
    """A role that was made a sender, a consumer, an operator or an auditor.

    Attributes:
        role: its name.
        kind: what it was made: sender, consumer, operator or auditor.
        lacks: the rights of its kind that it lacks, such as ``EXECUTE on reservation.take_part``.
        remedies: the statements that grant these.
        categories: those that a sender may write to.
    """

    role: str
    kind: str
    lacks: tuple[str, ...]
    remedies: tuple[str, ...]
    categories: tuple[str, ...]

    @property
    def command(self) -> str:
        """The command that gives it the rights of its kind."""
        words = ["reservation", "store", "grants", self.kind, self.role]
        words += [word for category in self.categories for word in ("--category", category)]
        return printable(shlex.join(words))


def known_roles(connection: Connection[Any]) -> list[KnownRole]:
    """Return the roles that were made a sender, a consumer, an operator or an auditor, by name.

    Args:
        connection: of a role that may use the schema ``reservation``. Senders are returned if it
            may see which categories they may write to: see `may_see_senders`.
    """
    senders, categories = None, None
    with translated():
        if may_see_senders(connection):
            ((senders, categories),) = connection.execute(_QUERIES["senders"]).fetchall()
        values = {"senders": senders or [], "categories": categories or []}
        rows = connection.execute(_QUERIES["roles"], values).fetchall()
    return [
        KnownRole(role, kind, tuple(lacks), tuple(remedies), tuple(categories))
        for role, kind, lacks, remedies, categories in rows
    ]


def may_see_senders(connection: Connection[Any]) -> bool:
    """Return whether the role of a connection may see which roles are senders, as auditors may."""
    with translated():
        ((may,),) = connection.execute(_QUERIES["may_see_senders"]).fetchall()
    return bool(may)


def renew_rights(connection: Connection[Any], before: Sequence[KnownRole]) -> list[str]:
    """Give roles what their kind has got in an upgrade.

    Args:
        connection: in the transaction of the upgrade, after it.
        before: the roles as they were before.

    Returns:
        The names of the roles that were given something. Those that lacked a right before are not
        among them.
    """
    complete = {(role.role, role.kind) for role in before if not role.lacks}
    renewed = []
    for role in known_roles(connection):
        if role.lacks and (role.role, role.kind) in complete:
            for statement in role.remedies:
                connection.execute(statement.encode())
            renewed.append(role.role)
    return renewed
