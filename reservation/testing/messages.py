"""Messages of tests, as they would be stored: in which stream, and under which type."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from reservation.component import Component
from reservation.declaration.category import CategoryDeclarations
from reservation.declaration.table import declarations
from reservation.errors import DeclarationError
from reservation.messages.message import StoredMessage
from reservation.messages.metadata import Metadata
from reservation.messages.stream_name import identifier, of
from reservation.serialization import codec
from reservation.serialization.json_limits import encoder
from reservation.store.writing.write import Row, Write, row_of
from reservation.testing.reference.log import TIME

_IDS = uuid.UUID("f1f5c35e-5a0c-4c7a-9a53-6a1f6b0c8a0e")

# The id in the stream of a message that names no entity.
NOBODY = "unknown"


@dataclass(frozen=True, slots=True)
class Stored:
    """A message as it is stored, for one whose class has changed since, or is unknown.

    ``Stored("Opened", {"accountId": "123"}, schema_version=1)``

    Attributes:
        type: the type that it is stored under.
        data: its JSON object, with camelCase keys.
        schema_version: the version in its metadata; None for a message without one.
    """

    type: str
    data: Mapping[str, Any] = field(default_factory=dict)  # JSON values
    schema_version: int | None = None

    def row(self, id_: uuid.UUID, stream_name: str) -> Row:
        """Return it as it would be written."""
        metadata = Metadata(schema_version=self.schema_version).encode()
        return Row(id_, stream_name, self.type, encoder.encode(self.data).decode(), metadata, None)


def made_up_id(*of_what: object) -> uuid.UUID:
    """Return an id that is the same at every run."""
    return uuid.uuid5(_IDS, "\n".join(map(str, of_what)))


def declaration_of(
    component: Component[Any], class_: type, category: str | None
) -> CategoryDeclarations:
    """Return the declaration that has the handler for a class."""
    declared = declarations(component)
    if issubclass(class_, type):
        raise DeclarationError("A class was given to handle; give a message, such as Withdraw(...)")
    name = class_.__name__
    subscribed = [
        one
        for one in declared.others.values()
        if one.types.has(class_) and category in (None, one.category)
    ]
    found: list[CategoryDeclarations] = [*subscribed]
    own = declared.own[name]
    if category is None and own.handler is not None and (own.message is class_ or not subscribed):
        found.append(declared.own)
    if len(found) > 1:
        raise DeclarationError(
            f"{component.name} has several handlers for {name}; give category= the name of the "
            f"subscribed category"
        )
    if not found:
        raise DeclarationError(
            f"{component.name} has no handler for {name}; declare one with "
            f"@{component.name}.handle({name}, …), or as one of another category with category="
        )
    return found[0]


def category_of(component: Component[Any], declared: CategoryDeclarations) -> str:
    """Return the category that messages of a declaration are sent to."""
    return declarations(component).command_category if declared.is_own else declared.category


def sent(component: Component[Any], declared: CategoryDeclarations, message: object) -> Write:
    """Return a command, or a message of a subscribed category, as its sender would write it.

    One without an entity id is in some stream too; its handling refuses it.
    """
    try:
        cardinal = identifier(declared.entity_stream(message)) or NOBODY
    except Exception:  # noqa: BLE001  a function that gives the id can raise anything
        cardinal = NOBODY
    return Write(message, of(category_of(component, declared), cardinal))


def encoded(declared: CategoryDeclarations, write: Write) -> Row:
    """Return a message with an id, encoded as the declaration of its class says."""
    return row_of(write, written=declared.types.written)


def as_stored(
    stream_name: str, type_: str, data: str, version: int | None, time: datetime = TIME
) -> StoredMessage:
    """Return a message as it would be read from a stream of its own."""
    return StoredMessage(
        id=str(made_up_id(stream_name, type_, data)),
        stream_name=stream_name,
        type=type_,
        position=0,
        global_position=1,
        data=data,
        metadata_json=Metadata(schema_version=version).encode(),
        time=time,
    )


def decoded_again(command: object) -> Any:
    """Return a command as its handler gets it: decoded from what is stored."""
    return codec.decode_encoded(type(command), codec.encode(command))
