"""The one table of what a component declares.

`declarations(component)` returns it. Consumers, the command line, the Spark jobs and the tests read
it and nothing else of a component.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Protocol

from psycopg import Connection

from reservation.declaration.category import CategoryDeclarations
from reservation.declaration.model_version import ModelVersion
from reservation.declaration.records import Role
from reservation.entity.projection import Projection, Projector
from reservation.entity.snapshots import Snapshots, code_revision
from reservation.errors import DeclarationError, DecodeError, UnknownTypeError
from reservation.handlers.failed_attempt import ErrorHook
from reservation.handlers.retry import Retry
from reservation.idempotence.reserve import Reservation
from reservation.idempotence.state_based.strategy import StateBased
from reservation.messages import stream_name
from reservation.messages.message import StoredMessage
from reservation.messages.upcasting import Recognizer, Upcaster
from reservation.recurring.series import Series
from reservation.serialization.fields import keys_of
from reservation.store.writing.scheduling import ScheduledRow
from reservation.store.writing.write import Row


class Declarations:
    """The declarations of a component and of each message type.

    Attributes:
        name: the component's name, which is the category of its events.
        entity: the entity's class; None if there is none.
        id: the field of each command that holds the entity's id.
        command_category: the category that commands are read from.
        default_retry: how often a message is tried that no policy of a handler is for.
        replies_to: the categories that handlers may reply to.
        snapshot_every: the least number of events between two snapshots; None for no snapshots.
        snapshot_revision: the number of the code that makes them.
        error_hooks: what is called when an attempt to handle a message fails.
        series: the recurring commands, by the names of their series.
        own: the declarations of the component's own messages.
        others: those of the messages of other categories, by category.
        projection: what events do to the entity.
        model: the version of a read model that the messages of others are handled for; None for a
            component.
    """

    def __init__(
        self,
        name: str,
        *,
        entity: Any,
        id: str,  # noqa: A002  the field's word
        attempts: int,
        replies_to: frozenset[str],
        snapshot_every: int | None,
        snapshot_revision: int,
    ) -> None:
        self.name = name
        self.entity = entity
        self.id = id
        self.command_category = stream_name.command_category(name)
        self.default_retry = Retry(attempts=attempts, first="100ms", most="10s")
        self.replies_to = replies_to
        self.snapshot_every = snapshot_every
        self.snapshot_revision = snapshot_revision
        self.error_hooks: list[ErrorHook] = []
        self.series: dict[str, Series] = {}
        self.own = CategoryDeclarations(name, name, id)
        self.others: dict[str, CategoryDeclarations] = {}
        self.types = self.own.types
        self._only_named: dict[type, None] = {}  # whose names and shapes alone are declared
        self.projection = Projection(self)
        self.model: ModelVersion | None = None

    def of(self, category: str) -> CategoryDeclarations:
        """Return the declarations by which the messages of a category are looked up."""
        return self.others.get(category, self.own)

    def all(self) -> Iterator[CategoryDeclarations]:
        """Yield the declarations of the component's own messages, then of those of others."""
        yield self.own
        yield from self.others.values()

    def other(self, category: str) -> CategoryDeclarations:
        """Return the declarations of another category; new ones are not in the table yet."""
        known = self.others.get(category)
        types = self.types.of_category()
        return known or CategoryDeclarations(self.name, category, self.id, types)

    def add_message(
        self,
        message: type,
        former_names: str | Iterable[str] = (),
        stored_as: str | None = None,
        version: int | None = None,
        upcasters: Sequence[tuple[Upcaster, Recognizer | None]] = (),
    ) -> None:
        """Add a class as an event, or its names and shapes wherever it is known."""
        is_event = not (former_names or upcasters) and stored_as is None and version is None
        known = [one for one in self.all() if one.types.has(message) and not is_event]
        if is_event:
            self.make_way(message, self.own)
        if is_event or known or message.__name__ not in self.types:
            places = known or [self.own]
        else:  # another class has its name, so it is to be one of another category
            places = []
            self.types.of_category().add(
                message, former_names=former_names, stored_as=stored_as, version=version
            )
        for declared in places:
            declared.types.add(
                message, former_names=former_names, stored_as=stored_as, version=version
            )
            if declared.is_own:
                declared.declare(message)
            declared.refresh()
        if not (is_event or known):
            self._only_named[message] = None
        if upcasters or version is not None:
            self._add_upcasters(message, upcasters)

    def _add_upcasters(
        self, message: type, upcasters: Sequence[tuple[Upcaster, Recognizer | None]]
    ) -> None:
        types = self.types.of_category()
        if types.chain(message).steps:
            raise DeclarationError(
                f"{self.name}: the upcasters of {message.__name__} are declared twice; give them "
                f"in one list"
            )
        for function, when in upcasters:
            types.add_upcaster(message, function, when)
        types.chain(message).check_complete()
        for declared in self.all():  # which have the same upcasters
            if declared.types.has(message):
                declared.types.add(message)

    def make_way(self, message: type, to: CategoryDeclarations) -> None:
        """Drop own events whose names alone were declared, in favour of a declared class."""
        for one in [*self._only_named]:
            if one is message:
                del self._only_named[one]
                if not to.is_own:
                    self.own.forget(one)
            elif to.is_own and one.__name__ == message.__name__:
                self.own.forget(one)

    @property
    def waiting(self) -> list[type]:
        """The classes that only names and shapes are declared of, and whose name is another's."""
        return [one for one in self._only_named if not self.types.has(one)]

    @property
    def commands(self) -> frozenset[type]:
        """The classes of the commands."""
        return frozenset(one.message for one in self.own.handled.values())

    @property
    def reservation_categories(self) -> list[str]:
        """The reservation categories, sorted."""
        return sorted({one.into for one in self.own.reservations.values()})

    @property
    def own_categories(self) -> list[str]:
        """The category of the commands, then those of their copies."""
        return [self.command_category, *self.reservation_categories]

    @property
    def subscribed_categories(self) -> list[str]:
        """The categories of others that messages are read from, sorted."""
        return sorted(self.others)

    @property
    def projected(self) -> frozenset[str]:
        """The event types that have a projector."""
        records = self.own.records.items()
        return frozenset(name for name, one in records if one.projector is not None)

    @property
    def passed(self) -> frozenset[str]:
        """The types of the events that leave the entity as it is, ignored ones among them."""
        events = self.own.with_role(Role.EVENT).items()
        return frozenset({name for name, one in events if one.projector is None} | self.own.ignored)

    @property
    def loads_entities(self) -> bool:
        """Whether handlers get entities that are made from events."""
        return self.entity is not None and any(
            one.handler is not None and (one.once is None or not one.once.keeps_state)
            for declared in self.all()
            for one in declared.handled.values()
        )

    @property
    def starts_are_first(self) -> bool:
        """Whether the event that starts an entity is always the first of its stream.

        With strategies that write pseudo events, one of these may come first. With others only a
        rejection may, and then the event that starts the entity says so.
        """
        return all(once.keeps_state for once in self.own.strategies.values())

    def projector(self, type_: str) -> Projector | None:
        """Return the projector of a type; None if there is none."""
        return self.own[type_].projector

    def is_passed(self, type_: str) -> bool:
        """Return whether events of a type leave the entity as it is, if they have no projector."""
        return self.own[type_].role is Role.EVENT or type_ in self.own.ignored

    @property
    def state_window(self) -> timedelta | None:
        """The longest window of any state; None for no limit."""
        windows = [
            one.once.window
            for declared in self.all()
            for one in declared.handled.values()
            if isinstance(one.once, StateBased)
        ]
        known = [window for window in windows if window is not None]
        return max(known) if known and len(known) == len(windows) else None

    def ignoring(self, role: Role) -> dict[str, list[str]]:
        """Return the JSON names of the fields in which reissues may differ, by type."""
        return {
            name: [keys_of(one.message)[field] for field in one.ignoring]
            for name, one in self.own.with_role(role).items()
        }

    @property
    def server_keys(self) -> dict[str, Reservation]:
        """The reservations, by type, of the commands whose keys the server may take."""
        reserved = self.own.reservations.items()
        return {name: one for name, one in reserved if not self.types.is_upcast(name)}

    def decode(self, message: StoredMessage, class_: type | None = None) -> object:
        """Return a stored message as an instance of its class; see `Component.decode`."""
        types = self.of(stream_name.category(message.stream_name)).types
        if message.type not in types:
            raise UnknownTypeError(
                f"Cannot decode {message}: no class of the component {self.name} has this type"
            )
        declared = types[message.type]
        if class_ is not None and declared is not class_:
            raise DecodeError(
                f"Cannot decode {message} as {class_.__name__}: its type is that of "
                f"{declared.__name__}"
            )
        return types.decode(message)

    def check_written(self, rows: Iterable[Row | ScheduledRow], cause: StoredMessage) -> None:
        """Refuse events that nobody would know when their entity is loaded."""
        for row in rows:
            if self.projection.knows(row.type):
                continue
            if stream_name.category(row.stream_name) == self.name:
                self.projection.check_written(row, cause)

    def snapshots(self, connection: Connection[Any]) -> Snapshots | None:
        """Return the snapshots of the component's entities; None if it has none."""
        if self.entity is None or self.snapshot_every is None:
            return None
        revision = code_revision(self.entity, self.projection, self.snapshot_revision)
        return Snapshots(connection, self.entity, self.snapshot_every, revision)


class Declared(Protocol):
    """A `Component`, whose declarations its users do not see."""

    _declarations: Declarations


def declarations(component: Declared) -> Declarations:
    """Return what a component declares."""
    return component._declarations
