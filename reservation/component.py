"""A component: what its author declares, and everything else reads.

The consumers, the command line and the Spark jobs all read here which commands there are, which
strategy each has, and which function handles it. What the decorators accept is typed by
`reservation.handlers.protocols`, so inside them it is `Any`.
"""

from collections.abc import Callable, Iterable
from typing import Any, Generic, overload

from psycopg import Connection

from reservation.declaration.asking import Asking
from reservation.declaration.completeness import check_complete
from reservation.declaration.subscribed_category import SubscribedCategory
from reservation.entity.snapshots import Snapshots, check_snapshots, code_revision
from reservation.errors import DeclarationError
from reservation.handlers.checks.declaration_checks import (
    Transaction,
    check_category_of_reservations,
    check_class,
    check_entity,
    check_handler,
    check_initiator,
    check_once,
    check_projected,
    check_projector,
    check_single,
    check_transaction,
)
from reservation.handlers.initiation import Initiation
from reservation.handlers.protocols import (
    Command,
    DataclassInstance,
    Entity,
    Event,
    HandlerDecorator,
    InitiatorDecorator,
    ProjectorDecorator,
)
from reservation.handlers.retry import Retry
from reservation.idempotence.key import (
    Key,
    KeyFunction,
    fields_of,
    former_key,
    key_fields,
    key_part,
)
from reservation.idempotence.reserve import Reservation
from reservation.idempotence.strategy import Strategy, is_two_phase
from reservation.messages import stream_name


class Component(Asking[Entity], Generic[Entity]):
    """The declaration of a component: its commands, keys, handlers and entity.

    ``Component("account", entity=Account, id="account_id")`` reads commands from the category
    ``account:command`` and writes events to ``account-<account_id>``. It is a
    ``Component[Account]``; one without an entity is a ``Component[None]``.
    """

    @overload
    def __init__(
        self: "Component[None]", name: str, *, entity: None = None, id: str, attempts: int = 3
    ) -> None: ...
    @overload
    def __init__(
        self,
        name: str,
        *,
        entity: type[Entity],
        id: str,
        attempts: int = 3,
        snapshot_every: int | None = None,
        snapshot_revision: int = 1,
    ) -> None: ...
    def __init__(
        self,
        name: str,
        *,
        entity: type[Entity] | None = None,
        id: str,  # noqa: A002  the field's word
        attempts: int = 3,
        snapshot_every: int | None = None,
        snapshot_revision: int = 1,
    ) -> None:
        """Start a declaration.

        Args:
            name: the entity's category, which is also the consumers' name.
            entity: a class that can be made without arguments; None for handlers without state.
            id: the field of each command that holds the entity's id.
            attempts: how often a message whose handler fails is tried before it becomes a dead
                letter; at least 1.
            snapshot_every: the least number of events between two snapshots of an entity, which
                must be a dataclass; None for no snapshots.
            snapshot_revision: raise it whenever a projector is changed, so that snapshots made by
                the former one are not used.

        Raises:
            StreamNameError: the name cannot be that of a category.
            DeclarationError: `attempts` is less than 1, the entity cannot be made or copied, or it
                cannot be kept in snapshots.
        """
        if attempts < 1:
            raise DeclarationError(
                f"{name}: a message is tried at least once, so attempts cannot be {attempts}"
            )
        super().__init__(stream_name.check_category(name))
        if entity is not None:
            check_entity(name, entity)
        if snapshot_every is not None:
            check_snapshots(name, entity, snapshot_every, snapshot_revision)
        self.command_category = stream_name.command_category(name)
        self.entity = entity
        self.id = id
        self.attempts = attempts
        self.snapshot_every = snapshot_every
        self.snapshot_revision = snapshot_revision

    def initiate(
        self,
        command: type[Command],
        *,
        volatile: str | Iterable[str] = (),
        transaction: Transaction = "batch",
        retry: Retry | None = None,
        concurrency: int | None = None,
        was: str | Iterable[str] = (),
        stored_as: str | None = None,
    ) -> InitiatorDecorator[Command]:
        """Declare a command that starts its entity's stream, handled by the decorated function.

        The handler takes the command and the `Context`, and returns the event, or events, that
        become the first of the stream, written with expected version -1. A reissue finds the
        stream there and is discarded.

        Args:
            command: the command's dataclass.
            volatile: fields in which a reissue may differ from the first issue.
            transaction: see `handle`, as are `retry` and `concurrency`.
            retry: when a message is tried again whose handler raised.
            concurrency: how many calls of an async handler run at a time.
            was: the former names of the class, or the only one; see `message`.
            stored_as: the name that is still written; see `message`.

        Raises:
            DeclarationError: the command is declared twice or lacks a field, another class has one
                of its names, there is no such transaction, or the function cannot be its handler.
        """
        check_class(self.name, "initiate", command, "Open")
        own_transaction = check_transaction(self.name, command, transaction)

        def declare(handler: Any) -> Any:
            name = self._command(command, was, stored_as)
            check_initiator(self.name, command, handler, self.commands)
            if name in self.handlers:
                raise DeclarationError(f"{self.name}: {name} has two handlers; keep one")
            fields = fields_of(command, volatile)
            alone = 'transaction="message"' if own_transaction else None
            self._note_calls(name, handler, retry=retry, concurrency=concurrency, alone=alone)
            self.initiations[name] = Initiation(command, handler, fields)
            self.own_transaction |= {name} if own_transaction else set()
            self.projection.is_used |= self.entity is not None
            self._spread()
            return handler

        return declare

    @overload
    def reserve(
        self,
        command: type[Command],
        /,
        *,
        key: str | Iterable[str] | Callable[[Command], Key],
        into: str | None = None,
        entity: str | None = None,
        volatile: str | Iterable[str] = (),
        formerly: str | Iterable[str] | Callable[[Command], Key] | None = None,
        was: str | Iterable[str] = (),
        stored_as: str | None = None,
        same_key: bool = False,
    ) -> None: ...
    @overload
    def reserve(
        self,
        first: type[DataclassInstance],
        second: type[DataclassInstance],
        /,
        *more: type[DataclassInstance],
        key: str | Iterable[str] | KeyFunction,
        into: str | None = None,
        entity: str | None = None,
        volatile: str | Iterable[str] = (),
        formerly: str | Iterable[str] | KeyFunction | None = None,
        same_key: bool = False,
    ) -> None: ...
    def reserve(
        self,
        *commands: type[DataclassInstance],
        key: str | Iterable[str] | KeyFunction,
        into: str | None = None,
        entity: str | None = None,
        volatile: str | Iterable[str] = (),
        formerly: str | Iterable[str] | KeyFunction | None = None,
        was: str | Iterable[str] = (),
        stored_as: str | None = None,
        same_key: bool = False,
    ) -> None:
        """Declare commands that take effect through a copy in a reservation stream.

        The stream is named ``<into>-<key>``, or ``<into>-<entity>+<key>`` if ``entity`` names the
        field to lead with, which keeps the commands of an entity in order in a consumer group.
        Without ``into`` there is one category and one consumer: the copy is in the command
        category, under the name of the command's own stream and ``+<key>``.

        Args:
            commands: the commands' dataclasses.
            key: the field, or fields, that hold the idempotence key; or a function that takes the
                command and returns the key.
            into: the reservation category; None for the command category itself.
            entity: the field whose value leads the stream's id, in a reservation category.
            volatile: fields in which a reissue may differ from the first issue, such as the time
                of sending.
            formerly: what the id of the reservation streams was made of before ``key`` or
                ``entity`` was changed: the field, the fields in their order, or a function of the
                command; without ``into`` what was added to the ids of the command's stream. A
                command that is reserved under that name is a duplicate too. None if nothing was
                changed.
            was: the former names of the class, or the only one; see `message`. For one command.
            stored_as: the name that is still written; see `message`. For one command.
            same_key: whether the fields of the key, and of ``entity``, have been the same in every
                former shape of the commands. The server then takes the keys of commands that have
                former names or upcasters, as it does of others.

        Raises:
            DeclarationError: a field does not exist, a command is declared twice, another class
                has one of its names, or the category is in use.
        """
        check_single(self.name, "reserve", commands, was, stored_as)
        corrections = stream_name.correction_category(self.name)
        own = (self.name, self.command_category, corrections, *self.subscribed)
        check_category_of_reservations(self.name, own, into, entity)
        for command in commands:
            keys = key if callable(key) else key_fields(command, key)
            if not keys:
                raise DeclarationError(f"{command.__name__}: the idempotence key names no field")
            if entity is not None:
                key_fields(command, entity)
            fields = fields_of(command, volatile)
            former = former_key(command, formerly)
            name = self._command(command, was, stored_as)
            self.reservations[name] = Reservation(
                command, into, keys, entity, fields, former, same_key
            )
        self._spread()

    def handle(
        self,
        command: type[Command],
        *,
        transaction: Transaction = "batch",
        once: Strategy | None = None,
        retry: Retry | None = None,
        concurrency: int | None = None,
        was: str | Iterable[str] = (),
        stored_as: str | None = None,
    ) -> HandlerDecorator[Command, Entity]:
        """Declare the decorated function as the handler of a command.

        The handler takes the command, its entity and the `Context`, and returns None, an event, or
        several. A reserved command is handled from its reservation. Any other is handled from the
        command category, and without `once` the handler must recognize a repeated command itself.

        Args:
            command: the command's dataclass.
            transaction: "batch" commits what the handler brings about together with the rest of
                its batch; "message" gives each message a transaction of its own, which takes a
                commit for each.
            once: how a repeated message is recognized; None leaves that to the handler, or to
                `reserve`.
            retry: when a message is tried again whose handler raised, while others are handled;
                None to try it the component's `attempts` times, directly.
            concurrency: how many calls of an async handler run at a time, from 1; 10 if None.
            was: the former names of the class, or the only one; see `message`.
            stored_as: the name that is still written; see `message`.

        Raises:
            DeclarationError: the command is declared twice or lacks a field; another class has one
                of its names; there is no such transaction; the function cannot be its handler;
                `once` is not a strategy, or the component's entity cannot be kept as the strategy
                requires.
        """
        check_class(self.name, "handle", command, "Withdraw")
        check_once(self.name, command, once)
        own_transaction = check_transaction(self.name, command, transaction)
        if once is not None:
            once.declare(self.name, command, self.entity)

        def declare(handler: Any) -> Any:
            name = self.types.add(command, was=was, stored_as=stored_as)
            key_fields(command, self.id)
            check_handler(self.name, command, handler, self.entity, self.commands)
            if name in self.handlers or name in self.initiations:
                raise DeclarationError(f"{self.name}: {name} has two handlers; keep one")
            two_phase = once is not None and is_two_phase(once)
            alone = 'transaction="message"' if own_transaction else None
            alone = f"once={type(once).__name__}" if two_phase else alone
            self._note_calls(name, handler, retry=retry, concurrency=concurrency, alone=alone)
            self.handlers[name] = handler
            self.own_transaction |= {name} if own_transaction else set()
            if once is not None:
                self.strategies[name] = once
            self.projection.is_used |= self.entity is not None and not two_phase
            self._spread()
            return handler

        return declare

    def project(
        self,
        event: type[Event],
        *,
        was: str | Iterable[str] = (),
        stored_as: str | None = None,
    ) -> ProjectorDecorator[Event, Entity]:
        """Declare the decorated function to apply events of a type to the entity.

        It takes the entity and the event, and changes the entity.

        Args:
            event: the event's dataclass.
            was: the former names of the class, or the only one; see `message`.
            stored_as: the name that is still written; see `message`.

        Raises:
            DeclarationError: the component has no entity, the event has a projector already,
                another class has one of its names, or the function cannot be a projector.
        """
        check_class(self.name, "project", event, "Withdrawn")
        check_projected(self.name, event, self.entity)

        def declare(projector: Any) -> Any:
            name = self.types.add(event, was=was, stored_as=stored_as)
            check_projector(self.name, event, self.entity, projector, self.projection.types)
            self.projection.projectors[name] = projector
            self._spread()
            return projector

        return declare

    def snapshots(self, connection: Connection[Any]) -> Snapshots | None:
        """Return the snapshots of the component's entities, None if it has none.

        Args:
            connection: in the transaction that reads the entities and writes their events.
        """
        if self.entity is None or self.snapshot_every is None:
            return None
        revision = code_revision(self.entity, self.projection, self.snapshot_revision)
        return Snapshots(connection, self.entity, self.snapshot_every, revision)

    def declared_in(self, category: str) -> "CategoryDeclaration":
        """Return what is declared of the messages of a category that is read.

        Args:
            category: one of the component's own, or one that it subscribes to.
        """
        return self.subscribed.get(category, self)

    def entity_stream(self, command: object) -> str:
        """Return the stream of the entity that a command is for.

        Args:
            command: the command.

        Raises:
            IdempotenceKeyError: the command has no entity id, or one that cannot name a stream.
        """
        value = key_part(getattr(command, self.id), f"field {self.id}")
        return stream_name.of_entity(self.name, value)

    def check(self) -> None:
        """Make sure that the declaration is complete.

        Raises:
            DeclarationError: it has no command and no subscription; a reserved command has no
                handler; the upcasters of a class do not lead to its version; or a handler is
                annotated to return an event that has no projector and is not declared otherwise.
        """
        check_complete(
            self.name, self.initiations, self.reservations, self.handlers, self.subscribed
        )
        self.check_messages()

    def _command(self, command: type, was: str | Iterable[str], stored_as: str | None) -> str:
        """Register a command that is reserved or initiates, once."""
        name = self.types.add(command, was=was, stored_as=stored_as)
        key_fields(command, self.id)
        if name in self.initiations or name in self.reservations:
            raise DeclarationError(
                f"{self.name}: {name} is declared twice; a command is reserved once or initiates"
            )
        return name


# What is declared of the messages of one category: one of a component's own, or of others.
CategoryDeclaration = Component[Any] | SubscribedCategory
