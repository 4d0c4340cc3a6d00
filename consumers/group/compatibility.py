"""Whether processes with different declarations may be members of one component's groups at once.

Each member stores what it declares (`ProcessDeclaration`). A process that joins compares that with
its own, under a lock that all that join take, so two that start at the same moment see each other.
It does not join if a command could take effect twice, or a message could become a dead letter,
because the two make keys differently or one cannot read what the other writes.

A member of a program that stores no declaration is unknown. It does not keep others from joining,
and it is reported.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from psycopg import Connection

from consumers.runtime.observability.logs import Log
from reservation.errors import GroupError
from reservation.inspection.process_declaration import (
    DeclaredCommand,
    DeclaredSubscription,
    KeyForm,
    ProcessDeclaration,
    Shape,
)
from reservation.messages.message import printable
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("consumers.group", "compatibility.sql")

GUIDE = "docs/how-to/upgrade-without-stopping.md"


@dataclass(frozen=True, slots=True)
class LivingMember:
    """A process that is a member of one of a component's groups, and is not gone.

    Attributes:
        process: its host and process id.
        declaration: what it declares; None if its program does not store that.
    """

    process: str
    declaration: ProcessDeclaration | None


@dataclass(frozen=True, slots=True)
class Difference:
    """Why a process may not run beside another one.

    Attributes:
        text: what differs.
        action: what to declare instead.
    """

    text: str
    action: str

    def __str__(self) -> str:
        """Return both, for an error."""
        return f"{self.text}; {self.action}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a process found when it compared its declaration with those of living members.

    Attributes:
        unfit: processes of members that it may not run beside, each with why.
        unknown: the processes of members that store no declaration.
        unread: by process, the types of commands that are read here and not by the member.
        undeclared: by process, those that the member reads, and that are not declared here.
    """

    unfit: tuple[tuple[str, Difference], ...] = ()
    unknown: tuple[str, ...] = ()
    unread: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    undeclared: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def living_members(
    connection: Connection[Any], consumer: str, former: int | None = None
) -> list[LivingMember]:
    """Return the members of all groups of a component, each process once.

    Processes of one name, which containers can have, count apart if they declare something else.

    Args:
        connection: of a role that may read the schema ``reservation``.
        consumer: the component's name.
        former: a member that the calling process was, which does not count.
    """
    with translated():
        rows = connection.execute(
            _QUERIES["living"], {"consumer": consumer, "former": former}
        ).fetchall()
    return [
        LivingMember(process, ProcessDeclaration.from_json(declaration))
        for process, declaration in rows
    ]


def compare(mine: ProcessDeclaration, members: Sequence[LivingMember]) -> Comparison:
    """Compare a declaration with those of living members.

    Args:
        mine: the declaration of the process that is to join.
        members: those of all groups of the component.
    """
    unfit: list[tuple[str, Difference]] = []
    unknown: list[str] = []
    unread: dict[str, tuple[str, ...]] = {}
    undeclared: dict[str, tuple[str, ...]] = {}
    for member in members:
        process, theirs = printable(member.process), member.declaration
        if theirs is None:
            unknown.append(process)
            continue
        unfit += [(process, difference) for difference in _differences(mine, theirs)]
        if types := _further(mine, theirs):
            unread[process] = types
        if types := _further(theirs, mine):
            undeclared[process] = types
    return Comparison(tuple(unfit), tuple(unknown), unread, undeclared)


def _further(one: ProcessDeclaration, other: ProcessDeclaration) -> tuple[str, ...]:
    """Return the commands that one process reads, and of which another knows no name."""
    known = {*other.commands, *other.ignored}
    return tuple(
        sorted(
            {c.written for c in one.commands.values() if known.isdisjoint((*c.names, c.written))}
        )
    )


def check_members(
    connection: Connection[Any], consumer: str, mine: ProcessDeclaration
) -> Comparison:
    """Refuse to start beside members that a process with this declaration cannot work with.

    Args:
        connection: of a role that may read the schema ``reservation``.
        consumer: the component's name.
        mine: the declaration of the process that is to start.

    Returns:
        What else was found.

    Raises:
        GroupError: there is such a member; the message names it, and what to do.
    """
    return _checked(consumer, compare(mine, living_members(connection, consumer)))


def join_beside(
    connection: Connection[Any], consumer: str, mine: ProcessDeclaration, former: int | None
) -> None:
    """Do the same in the transaction that joins, and keep others from joining until its end.

    Raises:
        GroupError: there is such a member.
    """
    with translated():
        connection.execute(_QUERIES["lock"], {"consumer": consumer})
    _checked(consumer, compare(mine, living_members(connection, consumer, former)))


def store_declaration(connection: Connection[Any], member: int, mine: ProcessDeclaration) -> None:
    """Store what a member declares, in the transaction that joined."""
    with translated():
        connection.execute(_QUERIES["store"], {"member": member, "declaration": mine.to_json()})


def log_members(found: Comparison, log: Log) -> None:
    """Log which members could not be compared, and which read less than this process.

    Args:
        found: what a process found at its start.
        log: the logger.
    """
    if found.unknown:
        log.warning(
            "members_unknown",
            processes=list(found.unknown),
            hint=f"stop them first if a key, entity= or a name of a type has changed; see {GUIDE}",
        )
    for process, types in found.unread.items():
        log.warning(
            "commands_not_read",
            process=process,
            types=list(map(printable, types)),
            hint="let senders send them once that process has stopped",
        )
    for process, types in found.undeclared.items():
        log.warning(
            "commands_not_declared",
            process=process,
            types=list(map(printable, types)),
            hint="keep their handlers, or ignore them, as long as they are sent",
        )


def _checked(consumer: str, found: Comparison) -> Comparison:
    if found.unfit:
        more = f" (and {len(found.unfit) - 1} more)" if len(found.unfit) > 1 else ""
        process, difference = found.unfit[0]
        raise GroupError(
            f"The consumers of {consumer} cannot run beside a member of their group, "
            f"{process}: {difference}{more}. Or stop that process first. See {GUIDE}"
        )
    return found


def _differences(mine: ProcessDeclaration, theirs: ProcessDeclaration) -> Iterator[Difference]:
    """Give what keeps two declarations from running at once."""
    for type_ in sorted(mine.commands.keys() & theirs.commands):
        yield from _differences_of_command(
            printable(type_), mine.commands[type_], theirs.commands[type_]
        )
    for category in sorted(mine.subscriptions.keys() & theirs.subscriptions):
        yield from _differences_of_category(
            printable(category), mine.subscriptions[category], theirs.subscriptions[category]
        )
    for name in _renamed(mine, theirs):
        yield Difference(
            f"the command {printable(name)} is sent under this name now, which it cannot read",
            "write the former name with stored_as= until it has stopped",
        )
    for name in _renamed(theirs, mine):
        yield Difference(
            f"the command {printable(name)} is sent under this name there, which cannot be read "
            f"here",
            f"name it as a former name with was={name!r}",
        )
    for type_ in sorted(mine.writes):
        lacking = _unreadable(mine.writes[type_], theirs, type_)
        if lacking is not None:
            yield Difference(
                f"handlers here write the event {printable(type_)}, which it cannot read{lacking}",
                "write the former name with stored_as= if the class was renamed, or first deploy "
                "code that reads the event and does not write it",
            )
    for type_ in sorted(theirs.writes):
        lacking = _unreadable(theirs.writes[type_], mine, type_)
        if lacking is not None:
            yield Difference(
                f"its handlers write the event {printable(type_)}, which cannot be read "
                f"here{lacking}",
                "name a former name with was=, declare an upcaster from a former shape, keep its "
                "projector, or ignore it",
            )


def _renamed(one: ProcessDeclaration, other: ProcessDeclaration) -> list[str]:
    """Return the commands that another process knows, but not by the name that one writes."""
    known = {*other.commands, *other.ignored}
    return sorted(
        {
            command.written
            for command in one.commands.values()
            if command.written not in known and not known.isdisjoint(command.names)
        }
    )


def _unreadable(written: Shape, reader: ProcessDeclaration, type_: str) -> str | None:
    """Return why a process cannot read what another writes, in words; None if it can."""
    if reader.events is None:
        return None
    read = reader.events.get(type_)
    if read is None:
        return ""
    if read.version is not None and (written.version or 1) > read.version:
        return f", because the event has version {written.version} of its shape, not {read.version}"
    lacking = sorted(set(read.fields) - set(written.fields))
    return f", because the event lacks {printable(', '.join(lacking))}" if lacking else None


def _differences_of_command(
    name: str, mine: DeclaredCommand, theirs: DeclaredCommand
) -> Iterator[Difference]:
    """Give in which ways a command's key differs, so that a reissue could take effect twice."""
    if (mine.role, mine.into) != (theirs.role, theirs.into):
        yield Difference(
            f"it declares {name} as {_kind(theirs)}, and here it is {_kind(mine)}",
            "keep that as it was",
        )
    elif mine.key != theirs.key and not _find_each_other(mine, theirs):
        yield Difference(
            f"the reservations of {name} are named by {_shown(theirs.key)} there and by "
            f"{_shown(mine.key)} here",
            "let each find those of the other with formerly=, in two deployments",
        )
    if mine.once != theirs.once:
        yield Difference(
            f"a repeated {name} is recognized by {_once(theirs)} there and by {_once(mine)} here",
            "keep once= as it was",
        )


def _differences_of_category(
    category: str,
    mine: Mapping[str, DeclaredSubscription],
    theirs: Mapping[str, DeclaredSubscription],
) -> Iterator[Difference]:
    """Give in which ways messages of a subscribed category could be lost or handled twice.

    Whatever is not declared is passed, so a process loses the messages that only another handles.
    """
    for type_ in sorted({*mine, *theirs}):
        name = f"{printable(type_)} of {category}"
        one, other = mine.get(type_), theirs.get(type_)
        if one is None or other is None:
            known, names = (theirs, one.names) if one else (mine, other.names if other else ())
            if known.keys().isdisjoint(names):
                where = "here, and passed there" if one else "there, and passed here"
                action = "do not run both" if one else "keep the handler"
                yield Difference(f"{name} is handled {where}", action)
        elif one.id != other.id:
            yield Difference(
                f"the entity of {name} is found by {_shown(other.id)} there and by "
                f"{_shown(one.id)} here",
                "keep id= as it was",
            )
        elif (one.from_position, one.correlated) != (other.from_position, other.correlated):
            yield Difference(
                f"{name} is not handled from the same position or with the same correlation there",
                "keep from_position= and correlated= as they were",
            )
        elif one.once != other.once:
            yield Difference(
                f"a repeated {name} is not recognized in the same way there",
                "keep once= as it was",
            )


def _find_each_other(mine: DeclaredCommand, theirs: DeclaredCommand) -> bool:
    """Return whether each finds the reservations that the other makes."""
    return mine.formerly == theirs.key and theirs.formerly == mine.key


def _kind(command: DeclaredCommand) -> str:
    if command.role == "reserved":
        return f"reserved into {printable(command.into or 'the command category')}"
    return {"initiates": "one that initiates", "handled": "handled without a reservation"}.get(
        command.role, printable(command.role)
    )


def _shown(key: KeyForm) -> str:
    return printable(" and ".join(key))


def _once(command: DeclaredCommand) -> str:
    if command.once is None:
        return "nothing but its reservation"
    strategy, *key = command.once
    return printable(f"{strategy}({', '.join(key)})")
