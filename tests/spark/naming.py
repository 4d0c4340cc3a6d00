"""A component whose entities' ids are not the texts in the data of its messages."""

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from reservation import Component


class Size(Enum):
    SMALL = "s"


@dataclass
class ByNumber:
    thing_id: Decimal


@dataclass
class ByUuid:
    thing_id: UUID


@dataclass
class ByDay:
    thing_id: date


@dataclass
class BySize:
    thing_id: Size


@dataclass
class Folded:
    thing_id: str

    def __post_init__(self) -> None:
        self.thing_id = self.thing_id.lower()


@dataclass
class Renamed:
    __schema_version__ = 2

    thing_id: str


@dataclass
class Left:
    thing_id: str = "nobody"


@dataclass
class Plain:
    thing_id: str


@dataclass
class Weighed:
    weight: Decimal


@dataclass
class Told:
    who: str


@dataclass
class Noted:
    of: str


COMMANDS = [ByNumber, ByUuid, ByDay, BySize, Folded, Renamed, Left, Plain]
# What is written of each, and the entity that it is for.
IDS: dict[str, tuple[str, str]] = {
    "ByNumber": ('{"thingId": 1.50}', "1.5"),
    "ByUuid": (
        '{"thingId": "1F0BA3A53C5C4D3C9A552A5A0E3DBB5F"}',
        "1f0ba3a5-3c5c-4d3c-9a55-2a5a0e3dbb5f",
    ),
    "ByDay": ('{"thingId": "2026-01-31"}', "2026-01-31"),
    "BySize": ('{"thingId": "s"}', "s"),
    "Folded": ('{"thingId": "ABC"}', "abc"),
    "Renamed": ('{"name": "x"}', "x!"),
    "Left": ("{}", "nobody"),
    "Plain": ('{"thingId": "Plain"}', "Plain"),
    "Weighed": ('{"weight": 2.00}', "2"),
    "Told": ('{"who": "Me"}', "me"),
}


def tell(message: Any, entity: Any, context: Any) -> None:
    """Write two events to the stream of another entity, which are one effect."""
    for _ in range(2):
        context.write(Noted(type(message).__name__), "thing-other")


component = Component("thing", id="thing_id")
for _type in COMMANDS:
    component.handle(_type, once=None)(tell)
component.message(Renamed, upcast=lambda data: {"thingId": f"{data['name']}!"})
component.handle(Weighed, category="scale", id="weight")(tell)
component.handle(Told, category="scale", id=lambda told: told.who.lower())(tell)
component.message(Noted)
