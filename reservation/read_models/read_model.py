"""A read model, as its author declares it: its tables, and the handlers that fill them.

Inside it is a component without commands and without an entity, so its consumers, dead letters and
positions are those of every component.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar, overload

from reservation.component import Component
from reservation.declaration.model_version import ModelVersion, Tables, check_model
from reservation.declaration.records import Role
from reservation.declaration.table import declarations
from reservation.errors import DeclarationError
from reservation.handlers.checks.declaration_checks import check_class
from reservation.handlers.checks.reader_checks import check_reader, check_tables
from reservation.handlers.failed_attempt import ErrorHook
from reservation.handlers.reading import ReadContext, Recorded
from reservation.messages import stream_name
from reservation.messages.message_instance import MessageInstance
from reservation.messages.upcasting import Upcast, Upcaster
from reservation.raised import note_own_code
from reservation.read_models.waiting import wait, wait_async
from reservation.store.async_client import AsyncMessageStore
from reservation.store.client import MessageStore

Event = TypeVar("Event", bound=MessageInstance)
Hook = TypeVar("Hook", bound=ErrorHook)
Handler = TypeVar("Handler", bound=Callable[..., object])
T = TypeVar("T", bound=Tables)


class ReadModel:
    """The declaration of one version of a read model: tables that are made from events.

    ``ReadModel("occupancy", version=2)`` has its tables in the schema ``occupancy_2``, and readers
    use views of them in ``occupancy``. Raise the version whenever its tables or handlers change:
    the new one is made beside the old, and `reservation models switch` turns the views.

    Attributes:
        name: the name, which is also the schema of the views.
        version: the number of the version.
    """

    name: str
    version: int

    def __init__(self, name: str, *, version: int, attempts: int = 3) -> None:
        """Start a declaration.

        Args:
            name: a name that the schema of the views can have without quotes.
            version: the number of the version, from 1.
            attempts: how often an event whose handler fails is tried before it becomes a dead
                letter; at least 1.

        Raises:
            DeclarationError: the name cannot be that of a schema or is in use for others, or the
                version is not a number from 1.
        """
        check_model(name, version)
        self.name, self.version = name, version
        self._model = ModelVersion(name, version)
        self._component = Component(self._model.schema, id="", attempts=attempts)
        self._declarations = declarations(self._component)
        self._declarations.model = self._model

    def tables(self, function: T) -> T:
        """Declare the decorated function to make the tables, once for each version.

        It takes a connection in a transaction whose search path is the version's schema. Each table
        needs a primary key, by which `reservation models verify` compares its rows.

        Args:
            function: the function.

        Raises:
            DeclarationError: there is one already, or it cannot be called so.
        """
        if self._model.tables is not None:
            raise DeclarationError(f"{self.name}: two functions make the tables; keep one")
        check_tables(self.name, function)
        note_own_code(getattr(function, "__module__", None))
        self._model.tables = function
        return function

    def handle(
        self, event: type[Event], *, category: str
    ) -> Callable[[Callable[[Event, ReadContext], None]], Callable[[Event, ReadContext], None]]:
        """Declare the decorated function to handle the events of a class, one at a time.

        It takes the event and the `ReadContext`, and changes rows through the connection.

        Args:
            event: the dataclass.
            category: the category whose events they are, such as ``booking``.

        Raises:
            DeclarationError: the event has two handlers, another class has one of its names, or the
                function cannot be its handler.
            StreamNameError: the category cannot be one.
        """
        declare: Callable[
            [Callable[[Event, ReadContext], None]], Callable[[Event, ReadContext], None]
        ] = self._reader("handle", event, category, many=False)
        return declare

    def handle_many(
        self, event: type[Event], *, category: str
    ) -> Callable[
        [Callable[[Sequence[Recorded[Event]], ReadContext], None]],
        Callable[[Sequence[Recorded[Event]], ReadContext], None],
    ]:
        """Declare the decorated function to handle several events of a class at once.

        It takes those of a batch that follow each other without an event of another handler in
        between, in their order, at least one. The rows must be those that the events one at a time
        would make, because how many there are depends on the batch.

        Args:
            event: the dataclass.
            category: the category whose events they are, such as ``booking``.

        Raises:
            DeclarationError: as for `handle`.
            StreamNameError: the category cannot be one.
        """
        declare: Callable[
            [Callable[[Sequence[Recorded[Event]], ReadContext], None]],
            Callable[[Sequence[Recorded[Event]], ReadContext], None],
        ] = self._reader("handle_many", event, category, many=True)
        return declare

    def message(
        self,
        event: type[MessageInstance],
        *,
        former_names: str | Iterable[str] = (),
        version: int | None = None,
        upcast: Upcaster | Upcast | Iterable[Upcaster | Upcast] = (),
    ) -> None:
        """Declare the former names and shapes of an event, as `Component.message` does.

        Args:
            event: the dataclass.
            former_names: the former names of the class, or the only one.
            version: the version of the shape that the class has now.
            upcast: the upcaster of the class, or its upcasters in their order.

        Raises:
            DeclarationError: as for `Component.message`.
        """
        self._component.message(event, former_names=former_names, version=version, upcast=upcast)

    def on_error(self, hook: Hook) -> Hook:
        """Declare a function to be told of each failed attempt; see `Component.on_error`.

        Args:
            hook: the function.

        Raises:
            DeclarationError: the function cannot be called so.
        """
        return self._component.on_error(hook)

    def check(self) -> None:
        """Make sure that the declaration is complete.

        Raises:
            DeclarationError: nothing makes the tables, no event is handled, or the upcasters of a
                class do not lead to its version.
        """
        if self._model.tables is None:
            raise DeclarationError(
                f"The read model {self.name!r} has no tables; declare the function that makes them "
                f"with @{self.name}.tables"
            )
        if not self._declarations.others:
            raise DeclarationError(
                f"The read model {self.name!r} handles no event; declare one with "
                f"@{self.name}.handle(…, category=…)"
            )
        self._component.check()

    @overload
    def wait_for(self, store: MessageStore, position: int, timeout: float = 10.0) -> bool: ...
    @overload
    def wait_for(
        self, store: AsyncMessageStore, position: int, timeout: float = 10.0
    ) -> Awaitable[bool]: ...
    def wait_for(
        self, store: MessageStore | AsyncMessageStore, position: int, timeout: float = 10.0
    ) -> bool | Awaitable[bool]:
        """Wait until the views show all events up to a position, so that a reader sees what it did.

        It is the version that the views show, whichever this is. Needs the right to read positions.

        Args:
            store: the store; the answer of an `AsyncMessageStore` is awaited.
            position: a global position, such as `Outcome.position`.
            timeout: how long to wait at most, in seconds.

        Returns:
            Whether they show it; False once the time is over, also where an event up to the
            position is an open dead letter.

        Raises:
            MissingRightError: the role may not read positions.
            StoreError: the timeout is not a number of seconds, or the database refuses or is away.
        """
        categories = self._declarations.subscribed_categories
        if isinstance(store, AsyncMessageStore):
            return wait_async(store, self._model, categories, position, timeout)
        return wait(store, self._model, categories, position, timeout)

    # Any: what the decorators accept is typed by their own annotations.
    def _reader(self, decorator: str, event: Any, category: str, *, many: bool) -> Any:
        check_class(self.name, decorator, event, 'Booked, category="booking"')
        stream_name.check_category(category)

        def declare(handler: Handler) -> Handler:
            table = self._declarations
            declared = table.other(category)
            table.make_way(event, declared)
            declared.types.add(event)
            check_reader(self.name, event, handler, many=many)
            if declared.of_class(event).handler is not None:
                raise DeclarationError(
                    f"{self.name}: {event.__name__} of {category} has two handlers; keep one"
                )
            note_own_code(getattr(handler, "__module__", None))
            declared.is_read = True
            declared.declare(event, handler=handler, role=Role.READ, many=many)
            table.others[category] = declared
            return handler

        return declare


# Any: components have entities of their own.
def component_of(declared: Component[Any] | ReadModel) -> Component[Any]:
    """Return what consumers run: a component, or the one inside a read model once it is checked."""
    declared.check()
    return declared._component if isinstance(declared, ReadModel) else declared
