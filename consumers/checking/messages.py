"""The messages of a component's categories, beside what it declares about them."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from psycopg import Connection

from consumers.checking.report import CheckedType, CheckFinding, CheckKind, FieldCount
from reservation.component import Component
from reservation.declaration.table import declarations
from reservation.errors import ReservationError
from reservation.inspection.sampling import CategoryCount, messages_at, sample
from reservation.inspection.tally import (
    CategoryRole,
    Inspector,
    Knowledge,
    Tally,
    declared_categories,
    declared_types,
)
from reservation.maintenance.reservation_names import advice
from reservation.messages.message import StoredMessage, printable

# How many types and fields are named of those that are too many for anybody to declare.
MOST_NAMED = 50


def sampled(
    connection: Connection[Any], component: Component[Any], size: int
) -> dict[str, tuple[CategoryCount, Tally]]:
    """Return what a sample of each category shows, and how many messages there are."""
    found = {}
    for category in declared_categories(component):
        chosen = sample(connection, category, size)
        messages = messages_at(connection, chosen.positions)
        found[category] = chosen.count, Inspector(component, category).tally(messages)
    return found


def exact(tallies: Mapping[str, Tally]) -> dict[str, tuple[CategoryCount, Tally]]:
    """Return the same for tallies of all messages of each category."""
    return {
        category: (
            CategoryCount(
                tally.messages, True, {name: one.messages for name, one in tally.types.items()}
            ),
            tally,
        )
        for category, tally in tallies.items()
    }


def checked_types(
    component: Component[Any], found: Mapping[str, tuple[CategoryCount, Tally]]
) -> list[CheckedType]:
    """Return the types that each category has, or should have, by category and name."""
    types: list[CheckedType] = []
    for category, role in declared_categories(component).items():
        count, tally = found[category]
        inspector = Inspector(component, category)
        shares = Counter({name: one.messages for name, one in tally.types.items()})
        names = {*tally.types, *count.counted, *declared_types(component, category, role)}
        unknown = sorted(name for name in names if inspector.knows(name) is Knowledge.UNKNOWN)
        left_out = set(unknown[MOST_NAMED:])
        for name in sorted(names - left_out):
            one = tally.types.get(name)
            types.append(
                CheckedType(
                    category,
                    role,
                    name,
                    inspector.knows(name),
                    count.of_type(name, shares),
                    count.exact,
                    0 if one is None else one.messages,
                    0 if one is None else one.unreadable,
                    None if one is None else one.first,
                    None if one is None else one.problem,
                    _fields({} if one is None else one.missing),
                    _fields({} if one is None else one.added),
                )
            )
        if count.exact:
            others = count.messages - sum(count.of_type(name, shares) for name in names - left_out)
        else:
            others = tally.others + sum(count.of_type(name, shares) for name in left_out)
        if others:
            looked_at = tally.others + sum(shares[name] for name in left_out)
            types.append(
                CheckedType(category, role, None, Knowledge.UNKNOWN, others, count.exact, looked_at)
            )
    return types


def findings_of_types(
    component: Component[Any], types: list[CheckedType]
) -> Iterator[CheckFinding]:
    """Give what does not fit about types: unknown ones, unreadable messages, other fields."""
    for one in types:
        if one.knowledge is Knowledge.UNKNOWN and one.messages:
            yield CheckFinding(
                CheckKind.UNKNOWN_TYPE,
                "finding",
                one.category,
                one.type,
                one.messages,
                "not declared" if one.type else "further types, none of them declared",
                _declare(component, one),
            )
        if one.unreadable:
            yield CheckFinding(
                CheckKind.UNREADABLE,
                "finding",
                one.category,
                one.type,
                one.unreadable,
                f"{one.unreadable:,} of {one.looked_at:,} cannot be read, the first at global "
                f"position {one.first_unreadable}: {printable(one.problem or '')}",
                "give new fields a default, or declare an upcaster from the former shape",
            )
        for text, fields in (("lacked by", one.missing), ("only in", one.added)):
            for field in fields[:MOST_NAMED]:
                yield CheckFinding(
                    CheckKind.FIELDS,
                    "note",
                    one.category,
                    one.type,
                    field.messages,
                    f"field {printable(field.field)}: {text} {field.messages:,} of "
                    f"{one.looked_at:,}",
                    "its default is used; a field without one makes a message unreadable"
                    if text == "lacked by"
                    else "it is passed over when the message is decoded",
                )


def findings_of_names(
    connection: Connection[Any], component: Component[Any], tallies: Mapping[str, Tally]
) -> Iterator[CheckFinding]:
    """Give the categories that have reservations under other names than the declaration gives."""
    for category, tally in tallies.items():
        if tally.misnamed_first is None:
            continue
        (first,) = messages_at(connection, [tally.misnamed_first])
        yield CheckFinding(
            CheckKind.RESERVATION_NAMES,
            "finding",
            category,
            first.type,
            tally.misnamed,
            f"{tally.misnamed:,} reservations under other names than declared, the first at global "
            f"position {first.global_position}: {printable(first.stream_name)}",
            _advice(component, first),
        )


def _advice(component: Component[Any], message: StoredMessage) -> str:
    declared = declarations(component).own.reservations[message.type]
    try:
        command = component.decode(message)
        return advice(component, declared, command, message)
    except ReservationError:
        return "name with former_key= what the id was made of"


def _declare(component: Component[Any], one: CheckedType) -> str:
    what = {
        CategoryRole.COMMANDS: "a handler",
        CategoryRole.RESERVATIONS: "a handler with key=",
        CategoryRole.EVENTS: "a projector",
        CategoryRole.SUBSCRIBED: "a handler with category=",
    }[one.role]
    if one.type is None:
        return f"declare {what} for each, or ignore it"
    name = printable(one.type)
    return (
        f"declare {what}, a former name with {component.name}.message(…, former_names={name!r}), "
        f"or let it pass with {component.name}.ignore({name!r})"
    )


def _fields(counts: Mapping[str, int]) -> tuple[FieldCount, ...]:
    return tuple(FieldCount(field, number) for field, number in sorted(counts.items()))
