"""What a component declares of the messages of a category that it subscribes to.

Such a category has types of its own: a `Cancelled` of payments is another class than a `Cancelled`
of shipments. So all that is looked up by type is kept for each category.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from reservation.handlers.initiation import Handler, Initiation
from reservation.handlers.retry import Retry
from reservation.idempotence.key import KeyPart, key_part
from reservation.idempotence.reserve import Reservation
from reservation.idempotence.strategy import Strategy, TwoPhaseStrategy, is_two_phase
from reservation.messages import stream_name
from reservation.messages.message import StoredMessage
from reservation.messages.registry import MessageTypes

# Any: each component has its own message classes.
EntityId = str | Callable[[Any], KeyPart]


@dataclass(frozen=True, slots=True)
class Subscription:
    """The handler of the messages of one type in one subscribed category.

    Attributes:
        message: the messages' dataclass.
        category: the category that they are in.
        handler: the function, which takes the message, the entity and the `Context`.
        id: the field that holds the id of the own entity, or a function of the message.
        from_position: the global position from which on messages are handled, 0 for all.
        correlated: whether only messages are handled whose correlation leads back to the component.
        once: how a repeated message is recognized, as it was declared; None for the default, which
            looks for what followed from it.
    """

    message: type
    category: str
    handler: Handler
    id: EntityId
    from_position: int = 0
    correlated: bool = False
    once: Strategy | None = None


class SubscribedCategory:
    """What a component declares of the messages of one subscribed category, by their types.

    It has what consumers look up in a `Component` about a category of its own.

    Attributes:
        name: the component's name.
        category: the category.
        types: the classes of its messages.
        subscriptions: the declarations, by the types that messages are stored under.
        handlers: their handlers.
        strategies: how repeated messages are recognized.
        retries: their policies of retries.
        concurrency: how many calls may run at a time, by the types with an async handler.
        own_transaction: the types whose messages need a transaction of their own.
        initiations: none; no message of another category starts a stream.
        reservations: none; no message of another category is reserved.
        ignored: none; what no handler is declared for is passed anyway.
    """

    def __init__(self, component: str, category: str, types: MessageTypes) -> None:
        """Begin with none.

        Args:
            component: the component's name.
            category: the category.
            types: an empty registry.
        """
        self.name = component
        self.category = category
        self.types = types
        self.subscriptions: dict[str, Subscription] = {}
        self.handlers: dict[str, Handler] = {}
        self.strategies: dict[str, Strategy] = {}
        self.retries: dict[str, Retry] = {}
        self.concurrency: dict[str, int] = {}
        self.own_transaction: set[str] = set()
        self.initiations: dict[str, Initiation] = {}
        self.reservations: dict[str, Reservation] = {}
        self.ignored: frozenset[str] = frozenset()
        self._of_class: dict[type, Subscription] = {}

    @property
    def first_position(self) -> int:
        """The global position of the first message that any handler is for, 0 for all."""
        return min((one.from_position for one in self.subscriptions.values()), default=0)

    @property
    def two_phase(self) -> dict[str, TwoPhaseStrategy]:
        """The two-phase strategies, by type."""
        return {name: once for name, once in self.strategies.items() if is_two_phase(once)}

    @property
    def reserves_within(self) -> frozenset[str]:
        """The types that are reserved within the category: none."""
        return frozenset()

    def add(
        self,
        name: str,
        declared: Subscription,
        once: Strategy,
        *,
        own_transaction: bool,
        retry: Retry | None,
        concurrency: int | None,
    ) -> None:
        """Add a declaration, and let it be found under the former names of its class too.

        Args:
            name: the name of the class.
            declared: the declaration.
            once: how a repeated message is recognized.
            own_transaction: whether each message needs a transaction of its own.
            retry: the handler's policy of retries; None for none.
            concurrency: how many calls may run at a time; None if the handler is not async.
        """
        self.subscriptions[name] = declared
        self.handlers[name] = declared.handler
        self.strategies[name] = once
        self._of_class[declared.message] = declared
        if retry is not None:
            self.retries[name] = retry
        if concurrency is not None:
            self.concurrency[name] = concurrency
        self.types.spread(
            self.subscriptions, self.handlers, self.strategies, self.retries, self.concurrency
        )
        if own_transaction:
            self.own_transaction.update(self.types.names(name))

    def passes(self, message: StoredMessage) -> bool:
        """Return whether a message is passed without being handled.

        That is one of a type for which no handler is declared, or one before the position that the
        handler begins at, or one whose correlation does not lead back to the component.
        """
        declared = self.subscriptions.get(message.type)
        return (
            declared is None
            or message.global_position < declared.from_position
            or (declared.correlated and not self._leads_back(message))
        )

    def entity_stream(self, message: object) -> str:
        """Return the stream of the component's entity that a decoded message is for.

        Args:
            message: the message, decoded.

        Raises:
            IdempotenceKeyError: the message has no entity id, or one that cannot name a stream.
            Exception: whatever the function raises that gives the id.
        """
        id_ = self._of_class[type(message)].id
        if callable(id_):
            value = key_part(id_(message), "what the function of id= returned")
        else:
            value = key_part(getattr(message, id_), f"field {id_}")
        return stream_name.of_entity(self.name, value)

    def id_field(self, name: str) -> str | None:
        """Return the field that holds the entity's id in messages of a type; None if a function."""
        id_ = self.subscriptions[name].id
        return None if callable(id_) else id_

    def _leads_back(self, message: StoredMessage) -> bool:
        correlation = message.metadata.correlation_stream_name
        return correlation is not None and stream_name.category(correlation) == self.name
