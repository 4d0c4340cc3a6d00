"""The compatibility of what the members of one component's groups declare.

Each member stores what it declares (`ProcessDeclaration`). A process that joins compares that with
its own, under a lock that all that join take, so two that start at the same moment see each other.
It does not join if the two recognize a repeated message in different ways, if one would ignore what
the other handles, or if one cannot read what the other writes.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
from psycopg import Connection

from reservation.errors import GroupError
from reservation.inspection.process_declaration import HandledType, ProcessDeclaration, Shape
from reservation.messages.message import printable
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("consumers.group", "compatibility.sql")

GUIDE = "docs/how-to/upgrade.md"


class Incompatibility(NamedTuple):
    """A reason not to run beside another process.

    Attributes:
        text: what differs.
        action: what to declare instead.
    """

    text: str
    action: str


def living_differences(
    connection: Connection[Any], consumer: str, mine: ProcessDeclaration, former: int | None = None
) -> list[tuple[str, Incompatibility]]:
    """Return what keeps a process from running beside living members of a component's groups."""
    with translated():
        members = connection.execute(
            _QUERIES["living"], {"consumer": consumer, "former": former}
        ).fetchall()
    return [
        (printable(process), difference)
        for process, declaration in members
        for difference in _differences(mine, declaration)
    ]


def _differences(mine: ProcessDeclaration, stored: str) -> Iterator[Incompatibility]:
    try:
        theirs = ProcessDeclaration.from_json(stored)
    except msgspec.MsgspecError:
        yield Incompatibility("it stores a declaration that cannot be read here", "run one version")
        return
    yield from compare(mine, theirs)


def check_members(
    connection: Connection[Any], consumer: str, mine: ProcessDeclaration, former: int | None = None
) -> None:
    """Refuse to start beside members that a process with this declaration cannot work with."""
    differences = living_differences(connection, consumer, mine, former)
    if differences:
        more = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
        process, difference = differences[0]
        raise GroupError(
            f"The consumers of {consumer} cannot run beside a member of their group, {process}: "
            f"{difference.text}; {difference.action}{more}. Or stop that process first. See {GUIDE}"
        )


def join_beside(
    connection: Connection[Any], consumer: str, mine: ProcessDeclaration, former: int | None
) -> None:
    """Check members in the transaction that joins, and keep others from joining until its end."""
    with translated():
        connection.execute(_QUERIES["lock"], {"consumer": consumer})
    check_members(connection, consumer, mine, former)


def store_declaration(
    connection: Connection[Any], member: int, first: int | None, mine: ProcessDeclaration
) -> list[str]:
    """Store what a member declares, in the transaction that joined; return series that stop.

    `first` is the member that its process was at first; None if it is this one.
    """
    with translated():
        stored = {"member": member, "first": first, "declaration": mine.to_json()}
        rows = connection.execute(_QUERIES["store"], stored).fetchall()
    return [name for row in rows for name in row[0]]


def compare(mine: ProcessDeclaration, theirs: ProcessDeclaration) -> Iterator[Incompatibility]:
    """Give what keeps processes with two declarations from running at once."""
    yield from _differing_keys(mine.commands, theirs.commands)
    for category in sorted(mine.subscriptions.keys() & theirs.subscriptions):
        one, other = mine.subscriptions[category], theirs.subscriptions[category]
        yield from _differing_keys(one, other)
        for type_ in _lacking(one, other):
            yield Incompatibility(
                f"{printable(type_)} of {printable(category)} is handled here, and ignored there",
                "do not run both",
            )
        for type_ in _lacking(other, one):
            yield Incompatibility(
                f"{printable(type_)} of {printable(category)} is handled there, and ignored here",
                "keep the handler",
            )
    for name in _renamed(mine, theirs):
        yield Incompatibility(
            f"the command {printable(name)} is sent under this name now, which it cannot read",
            "write the former name with message(…, stored_as=…) until it has stopped",
        )
    for name in _renamed(theirs, mine):
        yield Incompatibility(
            f"the command {printable(name)} is sent under this name there, which cannot be read "
            f"here",
            f"declare it as a former name with message(…, former_names={name!r})",
        )
    for type_, reason in _unreadable(mine, theirs):
        yield Incompatibility(
            f"handlers here write the event {printable(type_)}, which it cannot read{reason}",
            "write the former name with message(…, stored_as=…) if the class was renamed, or first "
            "deploy code that reads the event and does not write it",
        )
    for type_, reason in _unreadable(theirs, mine):
        yield Incompatibility(
            f"its handlers write the event {printable(type_)}, which cannot be read here{reason}",
            "declare a former name with message(…, former_names=…), or an upcaster from a former "
            "shape, keep its projector, or ignore it",
        )


def _differing_keys(
    mine: Mapping[str, HandledType], theirs: Mapping[str, HandledType]
) -> Iterator[Incompatibility]:
    for type_ in sorted(mine.keys() & theirs):
        here, there = mine[type_], theirs[type_]
        if not here.agrees_with(there):
            yield Incompatibility(
                f"the key of {printable(type_)} is {printable(there.keys[0])} there and "
                f"{printable(here.keys[0])} here",
                "keep it as it was, or let each find the reservations of the other with "
                "Key(…, former_key=…), in two deployments",
            )


def _lacking(one: Mapping[str, HandledType], other: Mapping[str, HandledType]) -> list[str]:
    """Return the types that one process handles, and another does not under any of their names."""
    return sorted(type_ for type_ in one if other.keys().isdisjoint(one[type_].names))


def _renamed(one: ProcessDeclaration, other: ProcessDeclaration) -> list[str]:
    """Return the commands that another process reads, but not under the name that one writes."""
    read = {*other.commands, *other.ignored}
    return sorted(
        {
            command.written
            for command in one.commands.values()
            if command.written not in read and not read.isdisjoint(command.names)
        }
    )


def _unreadable(
    writer: ProcessDeclaration, reader: ProcessDeclaration
) -> Iterator[tuple[str, str]]:
    """Give the events that one process writes and another cannot read, with the reason."""
    for type_, written in sorted(writer.writes.items()):
        read = Shape() if reader.events is None else reader.events.get(type_)
        if read is None:
            yield type_, ""
        elif read.version is not None and (written.version or 1) > read.version:
            versions = f"{written.version} of its shape, not {read.version}"
            yield type_, f", because the event has version {versions}"
        elif lacking := read.lacking(written):
            yield type_, f", because the event lacks {printable(', '.join(lacking))}"
