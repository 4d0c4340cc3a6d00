"""Whether stored reservations are named as a component declares it.

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
from reservation.errors import DeclarationError, ReservationError
from reservation.idempotence.key import key_parts
from reservation.idempotence.reserve import Reservation
from reservation.idempotence.server_keys import server_rules
from reservation.messages import stream_name
from reservation.messages.message import StoredMessage, printable
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("reservation.maintenance")

# So many places of a category are looked at, from its first message to its last, and so many
# messages at each of them.
PLACES = 200
AT_EACH = 10

# How many messages of a category are compared in one statement.
PORTION = 50_000


def check_names(
    connection: Connection[Any], component: Component, *, entirely: bool = False
) -> None:
    """Refuse a declaration under which stored reservations would not be found.

    Each reservation category is sampled over its whole length, in one statement. If it is to be
    compared entirely, the server looks at every reservation of which it can make the name.

    Args:
        connection: not in a transaction, of a role that may read messages.
        component: whose declaration it is.
        entirely: whether to look at more than a sample, which takes time with the category's size.

    Raises:
        DeclarationError: a reservation has a name that is neither the one that is declared nor the
            former one that is declared.
    """
    for category in component.reservation_categories:
        for message in _sample(connection, category):
            declared = component.reservations.get(message.type)
            if declared is not None and declared.into == category and message.position == 0:
                _check_name(component, declared, message)
        for message in _suspicious(connection, component, category) if entirely else ():
            _check_name(component, component.reservations[message.type], message)


def _suspicious(
    connection: Connection[Any], component: Component, category: str
) -> Iterator[StoredMessage]:
    """Give reservations that have neither the name that the server makes of them nor the former."""
    declared = {
        n: reservation
        for n, reservation in component.server_keys.items()
        if reservation.into == category
    }
    plain = {n: replace(reservation, formerly=None) for n, reservation in declared.items()}
    former = {
        n: reservation
        if reservation.formerly is None
        else replace(reservation, key=reservation.formerly, entity=None, formerly=None)
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
            cursor = connection.cursor(row_factory=args_row(StoredMessage))
            found = cursor.execute(_QUERIES["at_positions"], [positions]).fetchall()
        yield from found
        first = None if last is None else last + 1


def _sample(connection: Connection[Any], category: str) -> list[StoredMessage]:
    with translated(), connection.transaction():
        connection.execute(_QUERIES["sample_settings"])
        cursor = connection.cursor(row_factory=args_row(StoredMessage))
        return cursor.execute(
            _QUERIES["sample"], {"category": category, "places": PLACES, "at_each": AT_EACH}
        ).fetchall()


def _check_name(component: Component, declared: Reservation, message: StoredMessage) -> None:
    try:
        command = component.types.decode(message)
        name = declared.stream_name(command)
        if message.stream_name in (name, declared.former_stream(command)):
            return
    except Exception:  # noqa: BLE001  what the consumers cannot read or name, they say themselves
        return
    raise DeclarationError(
        f"{declared.into} has reservations under other names than the component {component.name} "
        f"declares: {printable(message.stream_name)} has a {message.type} that would be reserved "
        f"as {printable(name)}, so a reissue would take effect again; "
        f"{_mend(component, declared, command, message)}"
    )


def _mend(
    component: Component, declared: Reservation, command: object, message: StoredMessage
) -> str:
    """Return what to declare, with the fields if they are known."""
    call = f"{component.name}.reserve({message.type}, …)"
    if not callable(declared.key):
        for fields in (declared.key, (component.id, *declared.key)):
            try:
                former = stream_name.of(str(declared.into), *key_parts(command, fields))
            except ReservationError:
                continue
            if former == message.stream_name:
                named = repr(fields[0] if len(fields) == 1 else fields)
                return f"add formerly={named} to {call}"
    return f"name with formerly= in {call} what the id was made of: fields, or a function"
