"""Declarations of the messages of one category, by the types that they are stored under.

Each category that messages are read from has types of its own: a `Cancelled` of payments is another
class than a `Cancelled` of shipments.
"""

from dataclasses import replace
from typing import Any

from reservation.declaration.records import (
    HANDLED,
    UNDECLARED,
    EntityId,
    MessageDeclaration,
    Role,
)
from reservation.handlers.rate import Rate
from reservation.idempotence.key import key_part
from reservation.idempotence.reserve import Reservation
from reservation.idempotence.state_based.strategy import StateBased
from reservation.idempotence.strategy import Strategy
from reservation.messages import stream_name
from reservation.messages.message import StoredMessage
from reservation.messages.pseudo_event import PSEUDO_EVENT
from reservation.messages.registry import MessageTypes


class _Records(dict[str, MessageDeclaration]):
    """The records by type; that of a type that nothing is declared of is `UNDECLARED`."""

    def __missing__(self, type_: str) -> MessageDeclaration:
        return UNDECLARED


class CategoryDeclarations:
    """The declarations of the messages of one category.

    A component's own messages have one, be they in its command category, in its reservation
    categories or in the streams of its entities.

    Attributes:
        component: the component's name.
        category: the category; of own messages the component's name.
        types: the classes, and how messages of them are written and decoded.
        ignored: the types of own messages that are passed without being handled.
        is_read: whether a read model is made from the messages, whose entities are their streams.
    """

    def __init__(
        self, component: str, category: str, id_: str, types: MessageTypes | None = None
    ) -> None:
        self.component = component
        self.category = category
        self.types = MessageTypes() if types is None else types
        self.ignored: set[str] = set()
        self.is_read = False
        self._id = id_
        self._of_class: dict[type, MessageDeclaration] = {}
        self._records = _Records()

    @property
    def is_own(self) -> bool:
        """Whether these are the component's own messages."""
        return self.category == self.component

    def __getitem__(self, type_: str) -> MessageDeclaration:
        """Return the record of a type; `UNDECLARED` if there is none."""
        return self._records[type_]

    @property
    def records(self) -> dict[str, MessageDeclaration]:
        """All records, by type."""
        return dict(self._records)

    def of_class(self, message: type) -> MessageDeclaration:
        """Return the record of a class; `UNDECLARED` if there is none."""
        return self._of_class.get(message, UNDECLARED)

    def declare(self, message: type, **declared: Any) -> None:
        """Add to what is declared of a class, which is registered."""
        known = self._of_class.get(message)
        if known is None:
            role = Role.EVENT if self.is_own else Role.FOLLOW
            known = MessageDeclaration(
                message.__name__, message, (), self.category, role, id=self._id
            )
        self._of_class[message] = replace(known, **declared)
        self.refresh()

    def forget(self, message: type) -> None:
        """Take back that a class is one of these messages."""
        self._of_class.pop(message, None)
        self.types.forget(message)
        self.refresh()

    def ignore(self, *types: str) -> None:
        """Add types to pass; the name of a class stands for its former names too."""
        self.ignored.update(types)
        self.refresh()

    def refresh(self) -> None:
        """Make the records anew, of each class under each of its names."""
        records = _Records()
        for message, one in self._of_class.items():
            names = self.types.names_of(message)
            records |= {name: replace(one, type=name, names=names) for name in names}
            if message.__name__ in self.ignored:
                self.ignored.update(names)
        self._records = records

    def with_role(self, *roles: Role) -> dict[str, MessageDeclaration]:
        """Return the records of some roles, by type."""
        return {name: one for name, one in self._records.items() if one.role in roles}

    @property
    def handled(self) -> dict[str, MessageDeclaration]:
        """The records of the messages that are to be handled, by type."""
        return self.with_role(*HANDLED)

    @property
    def initiates(self) -> bool:
        """Whether there is a command whose handler starts a stream."""
        return any(one.role is Role.INITIATE for one in self._records.values())

    @property
    def reservations(self) -> dict[str, Reservation]:
        """Commands' reservations, by type."""
        found = {name: one.reservation for name, one in self._records.items()}
        return {name: one for name, one in found.items() if one is not None}

    @property
    def strategies(self) -> dict[str, Strategy]:
        """The strategies for messages that are not reserved, by type."""
        found = {name: one.once for name, one in self._records.items()}
        return {name: once for name, once in found.items() if once is not None}

    @property
    def concurrency(self) -> dict[str, int]:
        """The limit of calls at a time, by the types with an async handler."""
        found = {name: one.concurrency for name, one in self._records.items()}
        return {name: limit for name, limit in found.items() if limit is not None}

    @property
    def rates(self) -> dict[str, Rate]:
        """The limits of how often handlers are called, by type."""
        found = {name: one.rate for name, one in self._records.items()}
        return {name: rate for name, rate in found.items() if rate is not None}

    @property
    def state_based(self) -> dict[str, StateBased]:
        """The strategies that keep a state, by type."""
        found = self.strategies.items()
        return {name: once for name, once in found if isinstance(once, StateBased)}

    @property
    def first_position(self) -> int:
        """The global position of the first message that any handler is for, 0 for all."""
        return min((one.from_position for one in self._records.values()), default=0)

    def passes(self, message: StoredMessage) -> bool:
        """Return whether a message is passed without being handled.

        That is one of an ignored type; in another category also one of a type that no handler is
        declared for, one before the position that its handler begins at, or one whose correlation
        does not lead back to the component.
        """
        if self.is_own:
            return message.type in self.ignored or message.type == PSEUDO_EVENT
        declared = self._records[message.type]
        return (
            declared is UNDECLARED
            or message.global_position < declared.from_position
            or (declared.correlated and not self._leads_back(message))
        )

    def entity_stream(self, message: object) -> str:
        """Return the stream of the component's entity that a decoded message is for."""
        id_: EntityId = self.of_class(type(message)).id or self._id
        if callable(id_):
            value = key_part(id_(message), "what the function of id= returned")
        else:
            value = key_part(getattr(message, id_), f"field {id_}")
        return stream_name.of_entity(self.component, value)

    def id_field(self, type_: str) -> str | None:
        """Return the field that holds the entity's id in messages of a type; None if a function."""
        id_ = self._records[type_].id
        return None if callable(id_) else id_

    def _leads_back(self, message: StoredMessage) -> bool:
        correlation = message.metadata.correlation_stream_name
        return correlation is not None and stream_name.category(correlation) == self.component
