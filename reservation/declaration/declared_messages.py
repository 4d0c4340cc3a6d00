"""The part of a component that is about its messages: their names, their shapes, what is known.

Whatever is declared of a class is found by the class's own name and by each of its former names, so
whoever looks something up does so by the type that a message carries.
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Literal, overload

from reservation.declaration.error_hooks import ErrorHooks
from reservation.declaration.subscribed_category import SubscribedCategory
from reservation.entity.projection import Projection
from reservation.errors import DeclarationError, UnknownTypeError
from reservation.handlers.checks.declaration_checks import check_class, check_single, check_upcaster
from reservation.handlers.checks.returned_checks import check_events
from reservation.handlers.execution import check_execution
from reservation.handlers.initiation import Handler, Initiation
from reservation.handlers.protocols import DataclassInstance, UpcasterDecorator
from reservation.handlers.retry import Retry
from reservation.idempotence.reserve import Reservation
from reservation.idempotence.strategy import Strategy, TwoPhaseStrategy, is_two_phase
from reservation.messages.message import StoredMessage
from reservation.messages.pseudo_event import PSEUDO_EVENT
from reservation.messages.registry import MessageTypes
from reservation.messages.stream_name import category
from reservation.messages.upcasting import Recognizer
from reservation.raised import note_own_code
from reservation.serialization.codec import camel_case
from reservation.store.writing.scheduling import ScheduledRow
from reservation.store.writing.write import Row


class DeclaredMessages(ErrorHooks):
    """What a component declares of its messages, by the types that they are stored under."""

    def __init__(self, name: str) -> None:
        """Begin with none.

        Args:
            name: the component's name.
        """
        super().__init__(name)
        self.types = MessageTypes()
        self.projection = Projection(name, self.types)
        self.initiations: dict[str, Initiation] = {}
        self.reservations: dict[str, Reservation] = {}
        self.handlers: dict[str, Handler] = {}
        self.own_transaction: set[str] = set()
        self.strategies: dict[str, Strategy] = {}
        self.subscribed: dict[str, SubscribedCategory] = {}
        self.retries: dict[str, Retry] = {}
        # How many calls may run at a time, by the types of messages with an async handler.
        self.concurrency: dict[str, int] = {}
        self.ignored = self.projection.ignored

    @overload
    def message(
        self,
        message: type[DataclassInstance],
        /,
        *,
        was: str | Iterable[str] = (),
        stored_as: str | None = None,
    ) -> None: ...
    @overload
    def message(
        self,
        first: type[DataclassInstance],
        second: type[DataclassInstance],
        /,
        *more: type[DataclassInstance],
    ) -> None: ...
    def message(
        self,
        *messages: type[DataclassInstance],
        was: str | Iterable[str] = (),
        stored_as: str | None = None,
    ) -> None:
        """Declare messages for which there is no other declaration.

        These are events that do not change the entity, and so have no projector, and further
        messages that handlers write, if they have former names.

        Args:
            messages: the messages' dataclasses.
            was: the former names of the class, or the only one, which are the types of stored
                messages of it; for one class.
            stored_as: the name that messages of the class are still written under, because there
                are readers that know no other; it need not be in ``was``. None for the class's own
                name, or the one that its ``__stored_as__`` says. For one class.

        Raises:
            DeclarationError: a class cannot be a message, or another class has one of its names.
        """
        check_single(self.name, "message", messages, was, stored_as)
        for message in messages:
            check_class(self.name, "message", message, "Withdrawn")
            self.projection.passed.add(self.types.add(message, was=was, stored_as=stored_as))
        self._spread()

    def events(self, *events: type[DataclassInstance]) -> None:
        """Declare the classes of events, as which a sender gets what follows from its command.

        Classes that have a projector, or that a handler is annotated to return, are known already.
        An event without a projector does not change the entity, as with `message`.

        Args:
            events: the events' dataclasses.

        Raises:
            DeclarationError: none is given, a class cannot be a message, or another class has its
                name.
        """
        if not events:
            raise DeclarationError(
                f"{self.name}: events names no class; write {self.name}.events(Withdrawn)"
            )
        for event in events:
            check_class(self.name, "events", event, "Withdrawn")
            name = self.types.add(event)
            if name not in self.projection.projectors:
                self.projection.passed.add(name)
        self._spread()

    def upcast(
        self, message: type[DataclassInstance], *, to: int, when: Recognizer | None = None
    ) -> UpcasterDecorator:
        """Declare the decorated function to make a stored object of a former shape one of the next.

        It takes the JSON object as a dictionary with the stored keys, whose numbers are `int` and
        `Decimal`, and returns the object of the next shape. It depends on nothing else. The
        upcasters of a class are declared in their order: the first makes version 2, the second
        makes version 3 of what the first made.

        Args:
            message: the message's dataclass, which has the shape of today. It says its version
                with ``__schema_version__``, which is written to the metadata of its messages.
            to: the version that the function makes, from 2. A message without a version has
                version 1.
            when: takes the object, and returns whether it has the former shape; None if the
                version says so. With it, a class needs no version.

        Raises:
            DeclarationError: it is not the next upcaster of the class, the class does not say its
                version, or the function cannot be an upcaster.
        """
        check_class(self.name, "upcast", message, "Withdrawn, to=2")

        def declare(upcaster: Any) -> Any:
            check_upcaster(self.name, message, upcaster, when)
            subscribed = [one.types for one in self.subscribed.values()]
            known = [types for types in (self.types, *subscribed) if types.has(message)]
            registries = known or [self.types]
            registries[0].add(message)
            registries[0].add_upcaster(message, to, upcaster, when)
            for types in registries[1:]:  # which have the same upcasters
                types.add(message)
            return upcaster

        return declare

    def ignore(self, *types: str) -> None:
        """Declare message types that consumers skip; others without a handler are dead letters.

        Events of these types leave the entity as it is.

        Args:
            types: the names of the types. The name of a declared class stands for its former names
                too.
        """
        self.ignored.update(types)
        self._spread()

    def decode(self, message: StoredMessage) -> object:
        """Return a stored message as an instance of its class, whichever of its shapes it has.

        Args:
            message: the message.

        Raises:
            UnknownTypeError: its type is not declared.
            DecodeError: it does not have the shape of its class, or of a former one.
        """
        subscribed = self.subscribed.get(category(message.stream_name))
        types = self.types if subscribed is None else subscribed.types
        if message.type not in types:
            raise UnknownTypeError(
                f"Cannot decode {message}: no class of the component {self.name} has this type"
            )
        return types.decode(message)

    @property
    def commands(self) -> frozenset[type]:
        """The classes of the commands that are declared."""
        names = {*self.initiations, *self.reservations, *self.handlers}
        return frozenset(map(self.types.__getitem__, names))

    @property
    def has_commands(self) -> bool:
        """Whether there is a command, and so a consumer of the command category."""
        return bool(self.initiations or self.reservations or self.handlers)

    @property
    def reservation_categories(self) -> list[str]:
        """The reservation categories, sorted, without the command category."""
        into = {reservation.into for reservation in self.reservations.values()}
        return sorted(category for category in into if category is not None)

    @property
    def subscribed_categories(self) -> list[str]:
        """The categories of others that the component subscribes to, sorted."""
        return sorted(self.subscribed)

    @property
    def reserves_within(self) -> frozenset[str]:
        """The types of commands whose copies are in the command category itself."""
        return frozenset(name for name, to in self.reservations.items() if to.into is None)

    @property
    def two_phase(self) -> dict[str, TwoPhaseStrategy]:
        """The two-phase strategies, by the types of the commands they are declared for."""
        return {name: once for name, once in self.strategies.items() if is_two_phase(once)}

    @property
    def state_window(self) -> timedelta | None:
        """How long versions of states are kept: the longest window of any; None for no limit."""
        subscribed = [one.two_phase for one in self.subscribed.values()]
        windows = [
            strategy.window for one in (self.two_phase, *subscribed) for strategy in one.values()
        ]
        known = [window for window in windows if window is not None]
        return max(known) if known and len(known) == len(windows) else None

    def volatile(self, role: Literal["initiate", "reserve"]) -> dict[str, list[str]]:
        """Return, by message type, the JSON names of the fields in which a reissue may differ.

        Args:
            role: "initiate" for the commands that start a stream, "reserve" for reserved ones.
        """
        declared = self.initiations if role == "initiate" else self.reservations
        return {
            name: [camel_case(field) for field in declaration.volatile]
            for name, declaration in declared.items()
        }

    @property
    def server_keys(self) -> dict[str, Reservation]:
        """The reservations, by message type, of the commands whose keys the server may take."""
        return {
            name: reservation
            for name, reservation in self.reservations.items()
            if reservation.same_key or not self.types.is_changed(name)
        }

    def passes(self, message: StoredMessage) -> bool:
        """Return whether a message is passed without being handled, because of its type.

        Args:
            message: one of a category of the component's own.
        """
        return message.type in self.ignored or message.type == PSEUDO_EVENT

    def check_written(self, rows: Iterable[Row | ScheduledRow], cause: StoredMessage) -> None:
        """Refuse events that nobody would know when their entity is loaded.

        Args:
            rows: what is to be written.
            cause: the message that brings it about.

        Raises:
            HandlerError: one goes to the stream of an entity of the component, and its type is not
                declared.
        """
        for row in rows:
            if not self.projection.knows(row.type) and category(row.stream_name) == self.name:
                self.projection.check_written(row, cause)

    def check_messages(self) -> None:
        """Make sure that what is declared of the messages is complete.

        Raises:
            DeclarationError: the upcasters of a class do not lead to its version, or a handler is
                annotated to return an event that is not declared.
        """
        for name in {*self.initiations, *self.reservations, *self.handlers, *self.projection.types}:
            self.types.chain(self.types[name]).check_complete()
        for subscribed in self.subscribed.values():
            for name in subscribed.subscriptions:
                subscribed.types.chain(subscribed.types[name]).check_complete()
        if self.projection.is_used:
            handlers = {name: one.handler for name, one in self.initiations.items()} | self.handlers
            check_events(self.name, handlers, self.projection.knows_class)
            for subscribed in self.subscribed.values():
                check_events(self.name, subscribed.handlers, self.projection.knows_class)

    def _note_calls(
        self,
        name: str,
        handler: Any,
        *,
        retry: Retry | None,
        concurrency: int | None,
        alone: str | None,
    ) -> None:
        """Note how the handler of a type is called; see `check_execution`."""
        note_own_code(getattr(handler, "__module__", None))
        at_a_time = check_execution(
            self.name, self.types[name], handler, retry=retry, concurrency=concurrency, alone=alone
        )
        if retry is not None:
            self.retries[name] = retry
        if at_a_time is not None:
            self.concurrency[name] = at_a_time

    def _spread(self) -> None:
        """Let all that is declared of a type be found under each name that it is stored under."""
        self.types.spread(
            self.initiations,
            self.reservations,
            self.handlers,
            self.strategies,
            self.retries,
            self.concurrency,
            self.projection.projectors,
        )
        for names in (self.own_transaction, self.projection.passed, self.ignored):
            names.update(*map(self.types.names, set(names)))
