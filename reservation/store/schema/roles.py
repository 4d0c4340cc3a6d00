"""The rights of a database role on the store, which are those of one of four kinds.

A sender writes to the categories named for it and reads nothing. A consumer has what ``reservation
start`` needs. An operator decides about dead letters and findings, and is the only kind that may
give a letter other data. An auditor reads. A grant is declarative: all former rights of the role on
the two schemas are revoked first, so that it has exactly those of its kind.

The categories of senders are in ``reservation.sender_categories``; the functions that write check
them with ``reservation.check_may_send``.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from psycopg import Connection, sql
from psycopg import errors as pg

from reservation.errors import StoreError
from reservation.messages.stream_name import check_category
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries
from reservation.store.schema.install import begin_change, check_installed

Kind = Literal["sender", "consumer", "operator", "auditor"]

_QUERIES = load_queries("reservation.store.schema", "roles.sql")
_STATEMENTS = load_queries("reservation.store.schema", "grants.sql")

# The server cuts a longer name, which may then be the name of another role.
_LONGEST_NAME = 63

# The category that stands for the counter of revisions of all entities.
_ALL_ENTITIES = {False: (), True: ("",)}

# The warnings of a GRANT or REVOKE that does nothing, or not all of it.
_NOT_DONE = ("01006", "01007")


@dataclass(frozen=True, slots=True)
class Grants:
    """The rights of a role.

    Attributes:
        kind: sender, consumer, operator or auditor.
        role: the role's name.
        categories: the categories that a sender may write to, sorted.
        global_revisions: whether a sender may draw revisions from the counter of all entities.
        created: whether the role was missing and is created.
        statements: the SQL that does all of it.
    """

    kind: Kind
    role: str
    categories: tuple[str, ...]
    global_revisions: bool
    created: bool
    statements: str


def grant(
    connection: Connection[Any],
    kind: Kind,
    role: str,
    categories: Sequence[str] = (),
    *,
    global_revisions: bool = False,
    dry_run: bool = False,
) -> Grants:
    """Give a role exactly the rights of a kind, in one transaction.

    A role that does not exist is created, and may not log in.
    """
    _check_name(role)
    _check_categories(kind, categories)
    if kind != "sender" and global_revisions:
        raise StoreError(f"Global revisions are granted to senders; {_a(kind)} needs no grant")
    with translated(), connection.transaction():
        begin_change(connection)
        check_installed(connection)
        found = connection.execute(_QUERIES["role"], [role]).fetchall()
        if found and found[0][0] is not None:
            raise StoreError(
                f"The role {role} cannot be made {_a(kind)}: {found[0][0]}; name another role"
            )
        wanted = sorted(set(categories))
        parts = [] if found else ["create"]
        texts = {
            name: _compose(
                connection, name, kind, role, [*wanted, *_ALL_ENTITIES[global_revisions]]
            )
            for name in [*parts, "revoke", kind]
        }
        if not dry_run:
            _apply(connection, texts, kind, role)
    return Grants(kind, role, tuple(wanted), global_revisions, not found, "\n".join(texts.values()))


def _apply(connection: Connection[Any], texts: dict[str, str], kind: Kind, role: str) -> None:
    with _all_or_error(connection):
        for name, text in texts.items():
            connection.execute(text.encode())
            if name == "revoke":
                _refuse_more(connection, kind, role)


def _refuse_more(connection: Connection[Any], kind: Kind, role: str) -> None:
    """Make sure that a role has no right left after all were revoked."""
    left = [row[0] for row in connection.execute(_QUERIES["effective"], {"role": role})]
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise StoreError(
            f"The role {role} cannot be made {_a(kind)}: it would keep {left[0]}{more}, from "
            f"PUBLIC, from a role that it is a member of, or granted by another than the owner; "
            f"revoke that first, or name another role"
        )


@contextmanager
def _all_or_error(connection: Connection[Any]) -> Iterator[None]:
    """Raise an error if the server warns that a privilege was not granted or revoked."""
    warnings: list[str] = []

    def note(diagnostic: Any) -> None:  # Any: psycopg hands on libpq's fields, one attribute each
        if diagnostic.sqlstate in _NOT_DONE:
            warnings.append(diagnostic.message_primary)

    connection.add_notice_handler(note)
    try:
        yield
    except pg.DependentObjectsStillExist as error:
        raise StoreError(
            "The role has granted privileges of the store to others, so they cannot be taken away "
            "from it; revoke those first"
        ) from error
    finally:
        connection.remove_notice_handler(note)
    if warnings:
        raise StoreError(
            f"The database refuses: {warnings[0]}; connect as the owner of the store, or as a "
            f"superuser"
        )


def _compose(
    connection: Connection[Any], name: str, kind: Kind, role: str, categories: Sequence[str]
) -> str:
    """Return statements of grants.sql, filled in."""
    functions = connection.execute(_QUERIES["functions"], {"kind": kind}).fetchall()
    template = sql.SQL(_STATEMENTS[name].decode())
    composed = template.format(
        role=sql.Identifier(role),
        role_name=sql.Literal(sql.Identifier(role).as_string(connection)),
        categories=sql.SQL(", ").join(map(sql.Literal, categories)),
        functions=sql.SQL(",\n  ").join(sql.SQL(row[0]) for row in functions),
    )
    return composed.as_string(connection)


def _check_name(role: str) -> None:
    if role.lower() in ("public", "none"):  # the server takes them for no role, quoted or not
        raise StoreError(
            f"{role!r} is not the name of a role for the server; name the role of one program"
        )
    if role.startswith("pg_"):
        raise StoreError(f"The role {role} is the server's own; name the role of one program")
    if not role or not role.isprintable() or len(role.encode()) > _LONGEST_NAME:
        raise StoreError(
            f"{role[:_LONGEST_NAME]!r} cannot be the name of a role: it must have 1 to "
            f"{_LONGEST_NAME} bytes and no control character"
        )


def _check_categories(kind: Kind, categories: Sequence[str]) -> None:
    if kind == "sender" and not categories:
        raise StoreError("A sender needs the categories that it may write to; name at least one")
    if kind != "sender" and categories:
        raise StoreError(f"Categories are for senders; {_a(kind)} has the whole store")
    for category in categories:
        check_category(category)


def _a(kind: Kind) -> str:
    return f"an {kind}" if kind in ("operator", "auditor") else f"a {kind}"
