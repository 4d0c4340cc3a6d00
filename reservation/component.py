"""A component, as its author declares it: its commands, events, entity, and what handles them.

Whatever is declared goes into one table (`reservation.declaration.table`), which everything else
reads. What the decorators accept is typed by `reservation.handlers.protocols`, so inside them it is
`Any`.
"""

import uuid
from collections.abc import Callable, Iterable
from types import EllipsisType
from typing import Any, Generic, Literal, TypeVar, overload

from reservation.declaration import questions
from reservation.declaration.category import CategoryDeclarations
from reservation.declaration.checks import (
    check_complete,
    check_other,
    check_own,
    check_rate,
    check_recognized,
    check_reservation,
    check_selection,
    check_source,
    entity_id,
)
from reservation.declaration.key import Key, key_of
from reservation.declaration.records import HANDLED, Role
from reservation.declaration.series import (
    add_series,
    check_returned_commands,
    check_timetable,
)
from reservation.declaration.table import Declarations
from reservation.entity.snapshots import check_snapshots
from reservation.errors import DeclarationError, UnknownTypeError
from reservation.handlers.breaker import Breaker
from reservation.handlers.checks.declaration_checks import (
    check_class,
    check_entity,
    check_error_hook,
    check_handler,
    check_ignored,
    check_initiator,
    check_messages,
    check_once,
    check_projected,
    check_projector,
    check_replies_to,
    check_single,
    upcasters_of,
)
from reservation.handlers.execution import check_execution
from reservation.handlers.failed_attempt import ErrorHook
from reservation.handlers.protocols import (
    Command,
    Entity,
    Event,
    HandlerDecorator,
    InitiatorDecorator,
    ProjectorDecorator,
)
from reservation.handlers.rate import Rate
from reservation.handlers.retry import Retry
from reservation.idempotence.followed import Followed
from reservation.idempotence.key import KeyPart, KeyValue, fields_of, key_fields, key_part
from reservation.idempotence.strategy import Strategy
from reservation.messages import stream_name as names
from reservation.messages.message import StoredMessage
from reservation.messages.message_instance import MessageInstance
from reservation.messages.upcasting import Upcast, Upcaster
from reservation.raised import note_own_code
from reservation.recurring.due import Missed
from reservation.recurring.series import TickFunction
from reservation.serialization.fields import is_message
from reservation.store.answers.question import Question

Message = TypeVar("Message")
Hook = TypeVar("Hook", bound=ErrorHook)


class Component(Generic[Entity]):
    """The declaration of a component: its commands, keys, handlers and entity.

    ``Component("account", entity=Account, id="account_id")`` reads commands from the category
    ``account:command`` and writes events to ``account-<account_id>``. It is a
    ``Component[Account]``; one without an entity is a ``Component[None]``.

    Attributes:
        name: the category of the entity, which is also the consumers' name.
        entity: the entity's class; None if there is none.
        id: the field of each command that holds the entity's id.
    """

    name: str
    entity: type[Entity] | None
    id: str

    @overload
    def __init__(
        self: "Component[None]",
        name: str,
        *,
        entity: None = None,
        id: str,
        attempts: int = 3,
        replies_to: str | Iterable[str] = (),
    ) -> None: ...
    @overload
    def __init__(
        self,
        name: str,
        *,
        entity: type[Entity],
        id: str,
        attempts: int = 3,
        replies_to: str | Iterable[str] = (),
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
        replies_to: str | Iterable[str] = (),
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
            replies_to: the category, or the categories, that handlers may reply to; see
                `Context.reply`.
            snapshot_every: the least number of events between two snapshots of an entity, which
                must be of a message class; None for no snapshots.
            snapshot_revision: raise it whenever a projector is changed, so that snapshots made by
                the former one are not used.

        Raises:
            StreamNameError: the name cannot be that of a category.
            DeclarationError: `attempts` is less than 1, replies would go to the component's own
                categories, the entity cannot be made or copied, or it
                cannot be kept in snapshots.
        """
        if attempts < 1:
            raise DeclarationError(
                f"{name}: a message is tried at least once, so attempts cannot be {attempts}"
            )
        self.name = names.check_category(name)
        if entity is not None:
            check_entity(name, entity)
        if snapshot_every is not None:
            check_snapshots(name, entity, snapshot_every, snapshot_revision)
        self.entity = entity
        self.id = id
        self._declarations = Declarations(
            name,
            entity=entity,
            id=id,
            attempts=attempts,
            replies_to=check_replies_to(name, replies_to),
            snapshot_every=snapshot_every,
            snapshot_revision=snapshot_revision,
        )

    def initiate(
        self,
        command: type[Command],
        *,
        ignoring: str | Iterable[str] = (),
        retry: Retry | None = None,
        breaker: Breaker | None = None,
        concurrency: int | None = None,
        rate: Rate | None = None,
    ) -> InitiatorDecorator[Command]:
        """Declare a command that starts its entity's stream, handled by the decorated function.

        The handler takes the command and the `Context`, and returns the event, or events, that
        become the first of the stream, written with expected version -1. A reissue finds the
        stream there and is discarded.

        Args:
            command: the command's class.
            ignoring: the fields in which a reissue may differ from the first issue.
            retry: when a message is tried again whose handler raised.
            breaker: when the handler's messages wait, because its provider is down.
            concurrency: how many calls of an async handler run at a time.
            rate: how often the handler is called at most, over all processes; None for no limit.

        Raises:
            DeclarationError: the command is declared twice or lacks a field, another class has one
                of its names, the function cannot be its handler, or the rate is by a field that
                it cannot be by.
        """
        check_class(self.name, "initiate", command, "Open")

        fields = fields_of(command, ignoring)
        check_rate(self.name, command, rate)

        def declare(handler: Any) -> Any:
            recorded = {"role": Role.INITIATE, "ignoring": fields, "rate": rate}
            own = self._declarations.own
            self._declare(own, command, handler, recorded, retry, breaker, concurrency)
            return handler

        return declare

    @overload
    def handle(
        self,
        message: type[Command],
        *,
        key: str | Iterable[str] | Callable[[Command], KeyValue] | Key[Command],
        once: Strategy | None = None,
        retry: Retry | None = None,
        breaker: Breaker | None = None,
        concurrency: int | None = None,
        rate: Rate | None = None,
    ) -> HandlerDecorator[Command, Entity]: ...
    @overload
    def handle(
        self,
        message: type[Command],
        *,
        once: Strategy | None,
        retry: Retry | None = None,
        breaker: Breaker | None = None,
        concurrency: int | None = None,
        rate: Rate | None = None,
    ) -> HandlerDecorator[Command, Entity]: ...
    @overload
    def handle(
        self,
        message: type[Event],
        *,
        category: str,
        id: str | Callable[[Event], KeyPart] | None = None,
        from_position: int = 0,
        correlated: bool = False,
        once: Strategy | None = None,
        retry: Retry | None = None,
        breaker: Breaker | None = None,
        concurrency: int | None = None,
        rate: Rate | None = None,
    ) -> HandlerDecorator[Event, Entity]: ...
    def handle(
        self,
        message: Any,
        *,
        key: Any = None,
        once: Strategy | EllipsisType | None = ...,
        category: str | None = None,
        id: Any = None,  # noqa: A002  the field's word
        from_position: int = 0,
        correlated: bool = False,
        retry: Retry | None = None,
        breaker: Breaker | None = None,
        concurrency: int | None = None,
        rate: Rate | None = None,
    ) -> Any:
        """Declare the decorated function as the handler of a command, or of messages of others.

        The handler takes the message, the component's entity and the `Context`, and returns None,
        an event of the entity, or several.

        A command is recognized by ``key``, which reserves it and handles the one copy that the key
        admits, or by ``once``. With ``category`` the messages of another category are handled,
        mostly another component's events. Those of a type that no handler is declared for are
        passed; without ``once`` a repeated one is recognized by what followed from it: the first
        event of the entity, or what is recorded of a message without one.

        Args:
            message: the class of the command, or of the messages of the other category, which
                may have another class of that name than the component has.
            key: the field, or fields, that hold the command's idempotence key, a function that
                takes the command and returns it, or a `Key`.
            once: how a repeated message is recognized without a key; None leaves that to the
                handler of a command.
            category: another category to read, such as ``payment`` or ``payment:command``; None
                for the component's commands.
            id: the field of a message of another category that holds the id of the component's
                entity, or a function that takes the message and returns it; None for the
                component's ``id``.
            from_position: the global position of the first message of another category to handle;
                what is before it is passed. 0 for all that there is.
            correlated: whether to handle only messages of another category whose metadata has a
                ``correlationStreamName`` of the component's own. Others are passed. (Source: the
                correlation of Eventide's consumers.)
            retry: when a message is tried again whose handler raised, while others are handled;
                None to try it the component's `attempts` times, directly.
            breaker: when the handler's messages wait, because its provider is down.
            concurrency: how many calls of an async handler run at a time, from 1; 10 if None.
            rate: how often the handler is called at most, over all processes; None for no limit.

        Raises:
            DeclarationError: a command has neither key nor strategy; it has the key of
                another command in the same reservation category; a category is the component's
                own, or in use; the message has two handlers or lacks a field; another class has
                one of its names; the function cannot be its handler; an option is out of its
                range; or the entity cannot be kept as the strategy requires.
            StreamNameError: a name cannot be that of a category.
        """
        check_class(self.name, "handle", message, 'Withdraw, key="withdrawal_id"')
        strategy = None if isinstance(once, EllipsisType) else once
        check_once(self.name, message, strategy)
        table = self._declarations
        recorded: dict[str, Any] = {"role": Role.HANDLE, "once": strategy}
        if category is not None:
            check_other(self.name, message, key)
            check_source(table, message, category)
            check_selection(self.name, message, from_position, correlated)
            id_ = entity_id(table, message, id)
            recorded = {"role": Role.FOLLOW, "once": strategy or Followed(), "id": id_}
            recorded |= {"from_position": from_position, "correlated": correlated}
        else:
            check_own(self.name, message, id, from_position, correlated)
            check_recognized(self.name, message, key, once)
        if key is not None:
            given = key_of(self.name, message, key)
            reservation = given.reservation(self.name, message, self.id)
            fields = fields_of(message, given.ignoring)
            recorded |= {"role": Role.RESERVE, "reservation": reservation, "ignoring": fields}
        check_rate(self.name, message, rate)
        recorded["rate"] = rate
        if strategy is not None:
            strategy.declare(self.name, message, self.entity)

        def declare(handler: Any) -> Any:
            declared = table.own if category is None else table.other(category)
            self._declare(declared, message, handler, recorded, retry, breaker, concurrency)
            if category is not None:
                table.others[category] = declared
            return handler

        return declare

    def project(self, event: type[Event]) -> ProjectorDecorator[Event, Entity]:
        """Declare the decorated function to apply events of a type to the entity.

        It takes the entity and the event, and changes the entity, or returns the new one. It has
        to return it where entities cannot be changed, such as frozen classes of tuples.

        Args:
            event: the event's class.

        Raises:
            DeclarationError: the component has no entity, the event has a projector already,
                another class has its name, or the function cannot be a projector.
        """
        check_class(self.name, "project", event, "Withdrawn")
        check_projected(self.name, event, self.entity)

        def declare(projector: Any) -> Any:
            own = self._declarations.own
            self._declarations.make_way(event, own)
            own.types.add(event)
            check_projector(self.name, event, self.entity, projector)
            if own.of_class(event).projector is not None:
                raise DeclarationError(
                    f"{self.name}: {event.__name__} has two projectors; keep one"
                )
            own.declare(event, projector=projector)
            return projector

        return declare

    def every(
        self,
        expression: str,
        *,
        zone: str = "UTC",
        missed: Missed = "latest",
        name: str | None = None,
    ) -> Callable[[TickFunction], TickFunction]:
        """Declare the decorated function to return the command for each tick of a series.

        It takes the `Tick`, and returns a command of the component, or None for nothing this time.
        The command is sent once for each tick, by whichever of the component's processes sees it
        first, under an id made of the component, the series and the tick. The function may be
        called several times for a tick, in several processes. If it raises, it is called again
        after a second, then two, and so on up to a minute. A tick is given up after 60 attempts,
        and, unless all missed ones are sent, with the next tick.

        A new series begins with the first tick after its first process has started, and so does
        one whose expression or time zone was changed. The processes that started last decide.

        Args:
            expression: minute, hour, day of the month, month and weekday, as in a crontab:
                ``0 2 * * *``. Seconds are refused.
            zone: the time zone of the expression, such as ``Europe/Berlin``. A time that a change
                of the clock skips or repeats fires once; an expression of all hours fires whenever
                the clock shows the minute.
            missed: which ticks are sent afterwards that no process was there for: the ``latest``,
                ``all`` of them, or ``none`` that is more than a minute old.
            name: the name of the series; None for that of the function.

        Raises:
            DeclarationError: the expression is not one or never fires, the time zone is unknown,
                the name is in use, or the function cannot be called so.
        """
        timetable = check_timetable(self.name, expression, zone, missed)

        def declare(function: TickFunction) -> TickFunction:
            add_series(self._declarations, timetable, missed, name, function)
            return function

        return declare

    @overload
    def message(
        self,
        message: type[MessageInstance],
        /,
        *,
        former_names: str | Iterable[str] = (),
        stored_as: str | None = None,
        version: int | None = None,
        upcast: Upcaster | Upcast | Iterable[Upcaster | Upcast] = (),
    ) -> None: ...
    @overload
    def message(
        self,
        first: type[MessageInstance],
        second: type[MessageInstance],
        /,
        *more: type[MessageInstance],
    ) -> None: ...
    def message(
        self,
        *messages: type[MessageInstance],
        former_names: str | Iterable[str] = (),
        stored_as: str | None = None,
        version: int | None = None,
        upcast: Upcaster | Upcast | Iterable[Upcaster | Upcast] = (),
    ) -> None:
        """Declare the names and shapes of a message, or messages that have no other declaration.

        The latter are events that do not change the entity, and so have no projector. A class that
        a handler is annotated to return is known by that to whoever sent its command.

        The options are for a single class, which may be a command, an event, or a message of
        another category; before or after its other declarations.

        Args:
            messages: the messages' classes.
            former_names: the former names of the class, or the only one, which are the types of
                stored messages of it.
            stored_as: the name that messages of the class are still written under, because there
                are readers that know no other; it need not be in ``former_names``. None for the
                class's own name, or the one that its ``__stored_as__`` says.
            version: the version of the shape that the class has now, from 1, which is written to
                the metadata of its messages. A message without a version has version 1. None for
                no version, or the one that its ``__schema_version__`` says, which also holds for
                senders that do not import the component.
            upcast: the upcaster of the class, or its upcasters in their order: the first makes
                version 2, the second makes version 3 of what the first made. Each takes the stored
                JSON object as a dictionary with the stored keys, whose numbers are `int` and
                `Decimal`, and returns the object of the next shape; it depends on nothing else.
                An `Upcast` recognizes the former shape without a version.

        Raises:
            DeclarationError: none is given, a class cannot be a message, another class has one of
                its names, the upcasters do not lead to its version or cannot be called so, or
                there are options for several classes.
        """
        given = {
            "former_names": former_names,
            "stored_as": stored_as,
            "version": version,
            "upcast": upcast,
        }
        check_single(self.name, messages, given)
        check_messages(self.name, messages)
        steps = upcasters_of(self.name, messages[0], upcast)
        for message in messages:
            self._declarations.add_message(message, former_names, stored_as, version, steps)

    def ignore(self, *types: str) -> None:
        """Declare message types that consumers skip; others without a handler are dead letters.

        Events of these types leave the entity as it is.

        Args:
            types: the names of the types. The name of a declared class stands for its former names
                too.

        Raises:
            DeclarationError: a type is not named by a text.
        """
        check_ignored(self.name, types)
        self._declarations.own.ignore(*types)

    def on_error(self, hook: Hook) -> Hook:
        """Declare the decorated function to be told of each failed attempt to handle a message.

        It takes the exception, with its traceback, and a `FailedAttempt`. The exception is the one
        that the handler, or other code of the component, raised; where none did, as for a message
        of an unknown type, it is the `MessageError` of the framework. Several functions are called
        in the order of their declaration.

        The function is for reporting, to Sentry for example. It never changes what becomes of the
        message: what it raises is logged as ``error_hook_failed`` and ignored, and what it returns
        is ignored too. It is called in the consumer's process and thread, once what becomes of the
        message is decided and no transaction is open. So the consumer handles nothing meanwhile,
        and what takes long belongs into a thread or a queue. Consumers of several categories that
        run in one process may call it at the same time. It is not called again for an attempt: if
        the process ends before the call, the attempt is not reported.

        It is not called where the handler raises `Reject`, nor for a fault of the environment
        such as a lost connection, nor for a conflict or a process that died, which raise nothing.
        If a message fails in a batch with others, its first attempt is the one that it gets by
        itself.

        Args:
            hook: the function.

        Raises:
            DeclarationError: the function cannot be called so.
        """
        check_error_hook(self.name, hook)
        self._declarations.error_hooks.append(hook)
        return hook

    def entity_stream(self, command: object) -> str:
        """Return the stream of the entity that a command is for.

        Args:
            command: the command.

        Raises:
            IdempotenceKeyError: the command has no entity id, or one that cannot name a stream.
        """
        return self._declarations.own.entity_stream(command)

    def command_stream(self, command: object) -> str:
        """Return the stream that a command is sent to, such as ``account:command-123``.

        Args:
            command: the command.

        Raises:
            UnknownTypeError: the component does not handle such commands.
            IdempotenceKeyError: the command has no entity id, or one that cannot name a stream.
            StreamNameError: the id is empty, or too long for a stream's name.
        """
        if self._declarations.own.of_class(type(command)).role not in HANDLED:
            if not is_message(command):
                given = command.__name__ if isinstance(command, type) else type(command).__name__
                raise UnknownTypeError(
                    f"Cannot send {given} to the component {self.name!r}: send one command at a "
                    f"time, an instance of its class"
                )
            raise UnknownTypeError(
                f"Cannot send {type(command).__name__}: the component {self.name!r} does not "
                f"handle it; send it with the component that does"
            )
        value = key_part(getattr(command, self.id), f"field {self.id}")
        return names.of_entity(self._declarations.command_category, value)

    @overload
    def question(
        self,
        command: type[MessageInstance],
        /,
        *,
        key: KeyValue | None = None,
        entity: KeyPart | None = None,
        stream_name: str | None = None,
        message_id: uuid.UUID | None = None,
    ) -> Question: ...
    @overload
    def question(
        self,
        command: MessageInstance,
        /,
        *,
        stream_name: str | None = None,
        message_id: uuid.UUID | None = None,
    ) -> Question: ...
    def question(
        self,
        command: type[MessageInstance] | MessageInstance,
        /,
        *,
        key: KeyValue | None = None,
        entity: KeyPart | None = None,
        stream_name: str | None = None,
        message_id: uuid.UUID | None = None,
    ) -> Question:
        """Return the question what became of a command, for `MessageStore.outcome`.

        Args:
            command: the command; or its class, for who knows only its key.
            key: with a class, the idempotence key, several parts as a list; of a command that
                initiates, the id of its entity.
            entity: with a class, the id of its entity, if the key alone does not name the stream;
                the value of the field that ``per`` of its `Key` names, if that is another.
            stream_name: the stream that the command is sent to; None for the stream of the command
                category that the entity's id names, such as ``account:command-123``.
            message_id: the id that the command was written with, if it is known. It is needed for
                a command without a key of which there may be several that say the same.

        Raises:
            UnknownTypeError: the component does not handle such commands.
            IdempotenceKeyError: the key is missing, or names no stream.
        """
        return questions.question(self._declarations, command, key, entity, stream_name, message_id)

    @overload
    def decode(self, message: StoredMessage, /) -> MessageInstance: ...
    @overload
    def decode(self, message: StoredMessage, class_: type[Message], /) -> Message: ...
    def decode(self, message: StoredMessage, class_: type[Any] | None = None, /) -> Any:
        """Return a stored message as an instance of its class, whichever of its shapes it has.

        Args:
            message: the message.
            class_: the class that it must be of; None for any that is declared.

        Raises:
            UnknownTypeError: its type is not declared.
            DecodeError: it is of another class, or does not have the shape of its class, or of a
                former one.
        """
        return self._declarations.decode(message, class_)

    def check(self) -> None:
        """Make sure that the declaration is complete.

        Raises:
            DeclarationError: no message is handled; the upcasters of a class do not lead to its
                version; a handler is annotated to return an event that has no projector and is
                not declared otherwise; or the function of a series, what is no command.
        """
        check_complete(self._declarations)
        check_returned_commands(self._declarations)

    def _declare(
        self,
        declared: CategoryDeclarations,
        message: type,
        handler: Any,
        recorded: dict[str, Any],
        retry: Retry | None,
        breaker: Breaker | None,
        concurrency: int | None,
    ) -> None:
        """Add the handler of a message to the table."""
        table = self._declarations
        table.make_way(message, declared)
        name = declared.types.add(message)
        if declared.is_own:
            key_fields(message, self.id)
        if recorded["role"] is Role.INITIATE:
            check_initiator(self.name, message, handler, table.commands)
        else:
            role: Literal["command", "message"] = "command" if declared.is_own else "message"
            check_handler(self.name, message, handler, self.entity, table.commands, role)
        if declared.of_class(message).handler is not None:
            where = "" if declared.is_own else f" of {declared.category}"
            raise DeclarationError(f"{self.name}: {name}{where} has two handlers; keep one")
        if recorded.get("reservation") is not None:
            check_reservation(table, recorded["reservation"])
        at_a_time = check_execution(
            self.name, message, handler, retry=retry, breaker=breaker, concurrency=concurrency
        )
        note_own_code(getattr(handler, "__module__", None))
        category = table.command_category if declared.is_own else declared.category
        recorded = recorded | {
            "category": category,
            "retry": retry,
            "breaker": breaker,
            "concurrency": at_a_time,
        }
        declared.declare(message, handler=handler, **recorded)
