"""The check that stored reservations are named as declared.

A reservation is found only by its name. If a store has reservations under other names, because
another program made them or the declaration was changed, a reissue of their commands would be
reserved again, and take effect again.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from psycopg import Connection
from psycopg.rows import args_row

from reservation.component import Component
from reservation.declaration.table import declarations
from reservation.errors import DeclarationError
from reservation.idempotence.reserve import Reservation
from reservation.idempotence.server_keys import server_rules
from reservation.messages.message import StoredMessage, printable
from reservation.messages.stream_name import category as category_of
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("reservation.maintenance")

# So many places of a category are looked at, from its first message to its last, and so many
# messages at each of them.
PLACES = 200
AT_EACH = 10

# Of stored data, which may be compressed. If the sample has more, every second of its messages is
# looked at, or every third, and so on.
SAMPLED_BYTES = 16 << 20
READ_BYTES = 64 << 10  # in one statement

# How many messages of a category are compared in one statement.
PORTION = 50_000


def check_names(
    connection: Connection[Any], component: Component, *, entirely: bool = False
) -> None:
    """Refuse a declaration under which stored reservations would not be found.

    Each reservation category is sampled over its whole length, in one statement. If they are to be
    compared entirely, the server looks at every reservation of which it can make the name.
    """
    table = declarations(component)
    for category in table.reservation_categories:
        for message in _sample(connection, category):
            declared = table.own[message.type].reservation
            if declared is not None and is_reservation(declared, message):
                _check_name(component, declared, message)
        for message in _suspicious(connection, component, category) if entirely else ():
            _check_name(component, table.own.reservations[message.type], message)


def _suspicious(
    connection: Connection[Any], component: Component, category: str
) -> Iterator[StoredMessage]:
    """Give reservations that have neither the name that the server makes of them nor the former."""
    declared = {
        n: reservation
        for n, reservation in declarations(component).server_keys.items()
        if reservation.into == category
    }
    plain = {n: replace(reservation, former_key=None) for n, reservation in declared.items()}
    former = {
        n: reservation
        if reservation.former_key is None
        else replace(reservation, key=reservation.former_key, entity=None, former_key=None)
        for n, reservation in declared.items()
    }
    rules, former_rules = server_rules(plain), server_rules(former)
    first: int | None = 1
    while first is not None and "[]" not in (rules, former_rules):
        with translated(), connection.transaction():
            last, positions = connection.execute(
                _QUERIES["misnamed"],
                {
                    "category": category,
                    "first": first,
                    "limit": PORTION,
                    "rules": rules,
                    "former_rules": former_rules,
                },
            ).fetchall()[0]
        yield from _at(connection, positions)
        first = None if last is None else last + 1


def _sample(connection: Connection[Any], category: str) -> Iterator[StoredMessage]:
    """Give the messages of a sample, of which a few are held at a time."""
    with translated(), connection.transaction():
        connection.execute(_QUERIES["sample_settings"])
        found = connection.execute(
            _QUERIES["sample"], {"category": category, "places": PLACES, "at_each": AT_EACH}
        ).fetchall()
    sampled = sum(size for _, size in found)
    positions, size = list[int](), 0
    for position, bytes_ in found[:: sampled // SAMPLED_BYTES + 1]:
        positions.append(position)
        size += bytes_
        if size >= READ_BYTES:
            yield from _at(connection, positions)
            positions, size = [], 0
    yield from _at(connection, positions)


def _at(connection: Connection[Any], positions: list[int]) -> list[StoredMessage]:
    with translated():
        cursor = connection.cursor(row_factory=args_row(StoredMessage))
        return cursor.execute(_QUERIES["at_positions"], [positions]).fetchall()


def is_reservation(declared: Reservation, message: StoredMessage) -> bool:
    """Return whether a message stands where only a reservation does.

    In the category that commands of its type are reserved into, that is the first message of each
    stream.
    """
    return message.position == 0 and category_of(message.stream_name) == declared.into


def is_misnamed(declared: Reservation, message: StoredMessage, command: object) -> bool:
    """Return whether a reservation has neither the name that is declared nor the former one."""
    return message.stream_name not in _names(declared, command)


def _names(declared: Reservation, command: object) -> tuple[str, str | None]:
    """Return the name that a reservation should have, and the former one."""
    return declared.stream_name(command), declared.former_stream(command)


def _check_name(component: Component, declared: Reservation, message: StoredMessage) -> None:
    try:
        command = declarations(component).types.decode(message)
        name, former = _names(declared, command)
        if message.stream_name in (name, former):
            return
    except Exception:  # noqa: BLE001  what the consumers cannot read or name, they say themselves
        return
    raise DeclarationError(
        f"{declared.into} has reservations under other names than the component {component.name} "
        f"declares: {printable(message.stream_name)} has a {printable(message.type)} that would be "
        f"reserved as {printable(name)}, so a reissue would take effect again; "
        f"{advice(component, declared, command, message)}"
    )


def advice(
    component: Component, declared: Reservation, command: object, message: StoredMessage
) -> str:
    """Return what to declare so that a misnamed reservation is found, with fields if known."""
    call = f"Key(…) in @{component.name}.handle({printable(message.type)}, …)"
    if not callable(declared.key):
        for fields in (declared.key, (component.id, *declared.key)):
            former = replace(declared, former_key=fields).former_stream(command)
            if former == message.stream_name:
                named = repr(fields[0] if len(fields) == 1 else fields)
                return f"add former_key={named} to {call}"
    return f"name with former_key= in {call} what the id was made of: fields, or a function"
