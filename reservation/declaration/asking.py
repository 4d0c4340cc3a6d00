"""Questions what became of a command, which a component makes and a store's client sends.

Where a command is looked for, and what its effect is, follows from the declaration: the stream of
its key, the stream of its entity, what its strategy keeps.
"""

import uuid
from collections.abc import Sequence
from typing import Any, Generic, overload

from msgspec.structs import replace

from reservation.declaration.asked_key import AskedKey, by_key, by_value
from reservation.declaration.known_events import KnownEvents
from reservation.declaration.subscribing import Subscribing
from reservation.errors import IdempotenceKeyError, MessageError, UnknownTypeError
from reservation.handlers.protocols import DataclassInstance, Entity
from reservation.idempotence.key import Key, KeyPart
from reservation.idempotence.processed import Processed
from reservation.idempotence.strategy import is_two_phase
from reservation.messages import stream_name as names
from reservation.messages.comparison import same_content, same_json
from reservation.messages.message import StoredMessage, followed_id
from reservation.serialization import codec
from reservation.serialization.struct_types import camel_case
from reservation.store.answers.question import Question


class Asking(Subscribing[Entity], Generic[Entity]):
    """The part of a component that makes questions about commands.

    Attributes:
        command_category: the category that the component reads commands from.
    """

    command_category: str

    @overload
    def question(
        self,
        command: type[DataclassInstance],
        /,
        *,
        key: Key | None = None,
        entity: KeyPart | None = None,
        stream_name: str | None = None,
        message_id: uuid.UUID | None = None,
    ) -> Question: ...
    @overload
    def question(
        self,
        command: DataclassInstance,
        /,
        *,
        stream_name: str | None = None,
        message_id: uuid.UUID | None = None,
    ) -> Question: ...
    def question(
        self,
        command: type[DataclassInstance] | DataclassInstance,
        /,
        *,
        key: Key | None = None,
        entity: KeyPart | None = None,
        stream_name: str | None = None,
        message_id: uuid.UUID | None = None,
    ) -> Question:
        """Return the question what became of a command, for `MessageStore.outcome`.

        Args:
            command: the command; or its class, for who knows only its key.
            key: with a class, the idempotence key, several parts as a list; of a command that
                initiates, the id of its entity.
            entity: with a class, the id of its entity, if the key alone does not name the stream.
            stream_name: the stream that the command is sent to; None for the stream of the command
                category that the entity's id names, such as ``account:command-123``.
            message_id: the id that the command was written with, if it is known. It is needed for
                a command without a key of which there may be several that say the same.

        Raises:
            UnknownTypeError: the component does not handle such commands.
            IdempotenceKeyError: the key is missing, or names no stream.
        """
        is_class = isinstance(command, type)
        class_: type = command if isinstance(command, type) else type(command)
        name = self._asked_name(class_)
        asked = (
            by_key(self, name, key, entity, stream_name)
            if is_class
            else by_value(self, name, command, stream_name)
        )
        if not asked.is_found and message_id is None:
            raise IdempotenceKeyError(
                f"Cannot ask about a {name} of {self.name} by its class: it has no key; give "
                f"message_id=, or the command itself"
            )
        return Question(
            about=f"{name} of {self.name}",
            category=self.name,
            asked=self._asked(name, class_, asked, message_id),
            decode=self._known_events().decode,
            is_same=self._comparison(name, class_, None if is_class else command),
        )

    def _asked_name(self, class_: type) -> str:
        """Return the name that a command is declared under."""
        name = class_.__name__
        is_known = name in self.initiations or name in self.handlers
        if not is_known or name not in self.types or self.types[name] is not class_:
            raise UnknownTypeError(
                f"Cannot ask about a {name}: the component {self.name!r} does not handle it; ask "
                f"with the component that does"
            )
        if self.command_category != names.command_category(self.name):
            raise UnknownTypeError(
                f"Cannot ask about a {name}: the component {self.name!r} reads commands from "
                f"{self.command_category!r}, and questions are for those of "
                f"{names.command_category(self.name)!r}"
            )
        return name

    def _asked(
        self, name: str, class_: type, asked: AskedKey, message_id: uuid.UUID | None
    ) -> dict[str, Any]:
        """Return what is sent to the server."""
        question: dict[str, Any] = {
            "category": self.command_category,
            "types": self.types.names_of(class_),
            "entityStream": asked.entity_stream,
            "idField": camel_case(self.id),
            "sentTo": asked.sent_to,
            "keyStreams": asked.key_streams,
            "initiates": name in self.initiations,
            "volatile": [camel_case(field) for field in self._volatile(name)],
            "fields": asked.fields,
            "content": asked.content,
        }
        if message_id is not None:
            question["messageId"] = str(message_id)
            if asked.entity_stream is not None:
                question["firstEvent"] = str(followed_id(str(message_id), asked.entity_stream, 0))
        strategy = self.strategies.get(name)
        if isinstance(strategy, Processed):
            question["processed"] = asked.processed or True
        if strategy is not None:
            question["states"] = is_two_phase(strategy)
        return question

    def _volatile(self, name: str) -> tuple[str, ...]:
        declared = self.reservations.get(name) or self.initiations.get(name)
        return () if declared is None else declared.volatile

    def _comparison(self, name: str, class_: type, command: object | None) -> Any:
        """Return the function that compares what stands under the key with a command."""
        stored = self.types.names_of(class_)
        volatile = self._volatile(name)

        def is_same(standing: StoredMessage, contents: Sequence[str]) -> bool:
            if standing.type not in stored:
                return False
            if command is None:
                return True
            firsts = [standing, *(replace(standing, data=content) for content in contents)]
            return any(self._says_the_same(command, first, volatile) for first in firsts)

        return is_same

    def _says_the_same(
        self, command: object, first: StoredMessage, volatile: tuple[str, ...]
    ) -> bool:
        """Return whether a stored command says what another says, as consumers compare them."""
        try:
            return same_content(command, self.types.decode(first), volatile)
        except MessageError:  # as it is stored
            own = codec.encode(command)
            fields = [camel_case(field) for field in volatile]
            return first.data is not None and same_json(own, first.data, fields)

    def _known_events(self) -> KnownEvents:
        """Return the classes of events, found once for the handlers that there are."""
        handlers = (*self.initiations.values(), *self.handlers.values())
        known: KnownEvents | None = self.__dict__.get("_events")
        if known is None or known.handlers != len(handlers):
            known = KnownEvents(self, len(handlers))
            self.__dict__["_events"] = known
        return known
