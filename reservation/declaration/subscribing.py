"""Declaring handlers of messages of other categories: events of other components, above all."""

from collections.abc import Callable, Iterable
from typing import Any, Generic

from reservation.declaration.declared_messages import DeclaredMessages
from reservation.declaration.subscribed_category import EntityId, SubscribedCategory, Subscription
from reservation.errors import DeclarationError
from reservation.handlers.checks.declaration_checks import (
    Transaction,
    check_class,
    check_handler,
    check_once,
    check_transaction,
)
from reservation.handlers.execution import check_execution
from reservation.handlers.protocols import Entity, Event, HandlerDecorator
from reservation.handlers.retry import Retry
from reservation.idempotence.followed import Followed
from reservation.idempotence.key import KeyPart, check_fields, key_fields
from reservation.idempotence.strategy import Strategy, is_two_phase
from reservation.messages import stream_name
from reservation.raised import note_own_code


class Subscribing(DeclaredMessages, Generic[Entity]):
    """The part of a component that is about the categories of others.

    Attributes:
        entity: the entity's class; None if there is none.
        id: the field of messages that holds the entity's id, where no other is named.
    """

    entity: type[Entity] | None
    id: str

    def on(
        self,
        message: type[Event],
        *,
        category: str,
        id: str | Callable[[Event], KeyPart] | None = None,  # noqa: A002  the field's word
        from_position: int = 0,
        correlated: bool = False,
        transaction: Transaction = "batch",
        once: Strategy | None = None,
        retry: Retry | None = None,
        concurrency: int | None = None,
        was: str | Iterable[str] = (),
    ) -> HandlerDecorator[Event, Entity]:
        """Declare the decorated function as the handler of messages of another category.

        The category is mostly that of another component's events. The handler takes the message,
        the component's own entity and the `Context`, and returns None, an event of that entity, or
        several. Messages of types for which no handler is declared are passed.

        Without ``once`` a repeated message is recognized by what followed from it: the first event
        of the entity, or what is recorded of a message without one.

        Args:
            message: the messages' dataclass. Its name is their type; another category may have
                another class of this name.
            category: the category to read, such as ``payment`` or ``payment:command``.
            id: the field of the message that holds the id of the component's entity, or a function
                that takes the message and returns it; None for the component's ``id``.
            from_position: the global position of the first message to handle; what is before it is
                passed. 0 for all that there is.
            correlated: whether to handle only messages whose metadata has a
                ``correlationStreamName`` of the component's own category. Others are passed.
                (Source: the correlation of Eventide's consumers.)
            transaction: see `Component.handle`.
            once: how a repeated message is recognized; None for the default.
            retry: see `Component.handle`.
            concurrency: see `Component.handle`.
            was: the former names of the class, or the only one, which are the types of stored
                messages of it.

        Raises:
            DeclarationError: the category is one of the component's own; there are two handlers
                for the type; a field is missing; the position is negative; or as for
                `Component.handle`.
            StreamNameError: the name cannot be that of a category.
        """
        check_class(self.name, "on", message, 'Captured, category="payment"')
        self._check_source(message, category)
        _check_selection(self.name, message, from_position, correlated)
        check_once(self.name, message, once)
        own_transaction = check_transaction(self.name, message, transaction)
        id_ = self._entity_id(message, id)
        if once is not None:
            once.declare(self.name, message, self.entity)

        def declare(handler: Any) -> Any:
            known = self.subscribed.get(category)
            declared = known or SubscribedCategory(self.name, category, self.types.of_category())
            name = declared.types.add(message, was=was)
            check_handler(self.name, message, handler, self.entity, self.commands, role="message")
            if name in declared.subscriptions:
                raise DeclarationError(
                    f"{self.name}: {name} of {category} has two handlers; keep one"
                )
            two_phase = once is not None and is_two_phase(once)
            alone = 'transaction="message"' if own_transaction else None
            alone = f"once={type(once).__name__}" if two_phase else alone
            at_a_time = check_execution(
                self.name, message, handler, retry=retry, concurrency=concurrency, alone=alone
            )
            note_own_code(getattr(handler, "__module__", None))
            self.subscribed[category] = declared
            declared.add(
                name,
                Subscription(message, category, handler, id_, from_position, correlated, once),
                once or Followed(),
                own_transaction=own_transaction,
                retry=retry,
                concurrency=at_a_time,
            )
            self.projection.is_used |= self.entity is not None and not two_phase
            return handler

        return declare

    def id_field(self, name: str) -> str:  # noqa: ARG002  it is the same for all types
        """Return the field that holds the entity's id in messages of a type."""
        return self.id

    def _check_source(self, message: type, category: str) -> None:
        """Refuse a category that the component reads or writes as its own."""
        stream_name.check_category(category)
        own = {
            self.name: "has its events; change the entity with @{0}.project",
            stream_name.command_category(self.name): "has its commands; handle them with "
            "@{0}.handle",
            stream_name.correction_category(self.name): "has its corrections",
        }
        own |= dict.fromkeys(
            self.reservation_categories, "has its reservations; handle them with @{0}.handle"
        )
        if category in own:
            raise DeclarationError(
                f"{self.name}: {message.__name__} cannot be subscribed to in {category!r}, the "
                f"component's own category, which {own[category].format(self.name)}"
            )

    def _entity_id(self, message: type, id_: Any) -> EntityId:
        """Return the field or the function that gives the entity's id."""
        if callable(id_):
            check_fields(message, ())
            return id_  # type: ignore[no-any-return]
        if id_ is not None and not isinstance(id_, str):
            raise DeclarationError(
                f"{self.name}: id= of {message.__name__} is a {type(id_).__name__}; give it the "
                f"name of a field, or a function of the message"
            )
        if id_ is None:
            check_fields(message, ())
            if self.id not in message.__dataclass_fields__:  # type: ignore[attr-defined]
                fields = ", ".join(message.__dataclass_fields__)  # type: ignore[attr-defined]
                raise DeclarationError(
                    f"{self.name}: {message.__name__} has no field {self.id!r} to find its "
                    f"{self.name} by; name one with id=, or a function of the message; it has "
                    f"{fields}"
                )
        field = id_ or self.id
        key_fields(message, field)
        return field


def _check_selection(component: str, message: type, position: Any, correlated: Any) -> None:
    if not isinstance(position, int) or isinstance(position, bool) or position < 0:
        raise DeclarationError(
            f"{component}: from_position={position!r} of {message.__name__} is no global position; "
            f"give the global position of the first message to handle, or leave it out for all"
        )
    if not isinstance(correlated, bool):
        raise DeclarationError(
            f"{component}: correlated={correlated!r} of {message.__name__} is neither True nor "
            f"False; the correlation is always that of the component's own category"
        )
