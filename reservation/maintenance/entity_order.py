"""Refusing several partitions where the messages of an entity would not stay in order.

The cardinal id of a stream gives the partition of its messages. Partitions are handled side by
side, so messages of one entity stay in order only if all of them are in one partition. Otherwise a
later message can be handled before an earlier one, and a handler that compares positions takes the
earlier one for a duplicate: it is lost. With one partition the order of the category is kept,
however its streams are named.
"""

from typing import Any

from psycopg import Connection

from reservation.component import Component
from reservation.declaration.table import declarations
from reservation.errors import GroupError
from reservation.idempotence.reserve import Reservation
from reservation.messages.message import printable
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries
from reservation.serialization.fields import forms_of

_QUERIES = load_queries("reservation.maintenance")


def check_order(component: Component, category: str, partitions: int) -> None:
    """Refuse several partitions for a category whose streams are not led by the entity's id."""
    if partitions == 1:
        return
    for name, reservation in declarations(component).own.reservations.items():
        if reservation.into == category and leading_field(reservation) != component.id:
            former = _former(reservation)
            raise GroupError(
                f"{category} cannot have {partitions} partitions: the component {component.name} "
                f"reserves {name} there in streams whose first id is not {component.id!r}, so "
                f"commands of one entity would be handled out of order, and some be lost; declare "
                f"@{component.name}.handle({name}, key=Key(…, per={component.id!r})), with "
                f"former_key={former} where there are reservations, or use one partition: "
                f"`reservation partitions APP 1 --category {category}`"
            )


def check_waiting(
    connection: Connection[Any], component: Component, category: str, partitions: int, after: int
) -> None:
    """Refuse several partitions as long as reservations under a former name wait to be handled.

    Those need not be in the partition of their entity, whose newer ones are.
    """
    ids = [
        (name, key)
        for name, reservation in declarations(component).own.reservations.items()
        if reservation.into == category and reservation.former_key is not None
        for form in forms_of(reservation.command)
        if form.name == component.id
        for key in form.keys
    ]
    if partitions == 1 or not ids:
        return
    types, keys = map(list, zip(*ids, strict=True))
    values = {"types": types, "keys": keys, "category": category, "after": after}
    with translated():
        found = connection.execute(_QUERIES["out_of_order"], values).fetchone()
    if found is not None:
        raise GroupError(
            f"{category} cannot have {partitions} partitions yet: {printable(found[0])} and "
            f"perhaps others were reserved under a former name and wait to be handled, which would "
            f"be out of order; run `reservation partitions APP 1 --category {category}` and "
            f"the consumers until these are handled"
        )


def leading_field(reservation: Reservation) -> str | None:
    """Return the field whose value is the first id of a reservation's stream; None if unknown."""
    if reservation.entity is not None or callable(reservation.key):
        return reservation.entity
    return reservation.key[0]


def _former(reservation: Reservation) -> str:
    if callable(reservation.key):
        return "that function"
    return repr(reservation.key[0] if len(reservation.key) == 1 else reservation.key)
