"""Roles that lack a right of their kind.

`reservation.store.schema.roles` gives the rights. An upgrade may bring tables and functions. So it
grants what is new to roles that had every right of their kind. Others are left as they are.
"""

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

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
        lacks: the rights of its kind that it lacks, such as ``EXECUTE on reservation.rebalance``.
        remedies: the statements that grant these.
        categories: those that a sender may write to; an empty one stands for global revisions.
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
        for category in self.categories:
            words += ["--category", category] if category else ["--global-revisions"]
        return printable(shlex.join(words))


def known_roles(connection: Connection[Any]) -> list[KnownRole]:
    """Return the roles that were made a sender, a consumer, an operator or an auditor, by name."""
    senders, categories = None, None
    with translated():
        if may_see_senders(connection):
            ((senders, categories),) = connection.execute(_QUERIES["senders"]).fetchall()
        values = {"senders": senders or [], "categories": categories or [], "kind": None}
        rows = connection.execute(_QUERIES["roles"], values).fetchall()
    return [_known(row) for row in rows]


def rights_as(connection: Connection[Any], kind: Literal["operator", "auditor"]) -> KnownRole:
    """Return the role of a connection, as one of a kind, with the rights of it that it lacks.

    Rights count from wherever it has them: granted to it, to a role that it is a member of, or
    because it owns the store.
    """
    values: dict[str, object] = {"senders": [], "categories": [], "kind": kind}
    with translated():
        (row,) = connection.execute(_QUERIES["roles"], values).fetchall()
    return _known(row)


def may_change(connection: Connection[Any]) -> bool:
    """Return whether the role of a connection may change what an auditor only reads."""
    with translated():
        ((may,),) = connection.execute(_QUERIES["exceeds"]).fetchall()
    return bool(may)


def _known(row: Sequence[Any]) -> KnownRole:
    role, kind, lacks, remedies, categories = row
    return KnownRole(role, kind, tuple(lacks), tuple(remedies), tuple(categories))


def may_see_senders(connection: Connection[Any]) -> bool:
    """Return whether the role of a connection may see which roles are senders, as auditors may."""
    with translated():
        ((may,),) = connection.execute(_QUERIES["may_see_senders"]).fetchall()
    return bool(may)


def renew_rights(
    connection: Connection[Any], before: Sequence[KnownRole], functions: Collection[str]
) -> list[str]:
    """Give roles what their kind has got in an upgrade, and what they had and lost by it.

    A role that lacked a right of its kind before is given nothing new. It keeps the right to call a
    function that was there before, although an upgrade makes the function anew.
    """
    lacked = {(role.role, role.kind): role.lacks for role in before}
    had = {f"EXECUTE on reservation.{name}" for name in functions}
    renewed = []
    for role in known_roles(connection):
        of_role = lacked.get((role.role, role.kind))
        if of_role is None:
            continue
        lost = had.difference(of_role)
        statements = [
            remedy
            for right, remedy in zip(role.lacks, role.remedies, strict=True)
            if not of_role or right in lost
        ]
        for statement in statements:
            connection.execute(statement.encode())
        if statements:
            renewed.append(role.role)
    return renewed
