"""Messages whose handlers have a state of which every version is kept, dealt with in two steps.

`store` handles the messages of a batch, each on the newest state or, if it was handled before, on
the state as it was then, and stores the new versions. When that is committed, `publish` writes what
the handlers publish. (See `reservation.idempotence.state_based.strategy`.)
"""

import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from psycopg import Connection

from consumers.handling.handler_call import call
from consumers.runtime.logs import Log
from reservation.component import Component
from reservation.context import Context, HandlerInputs
from reservation.errors import (
    DecodeError,
    ExpiredError,
    IdempotenceKeyError,
    MessageError,
    MessageIdConflictError,
    RefusedError,
    SerializationError,
    StreamNameError,
)
from reservation.handlers.returned import events_of
from reservation.idempotence.state_based.delta import difference
from reservation.idempotence.state_based.outputs import (
    digest,
    encode_state,
    from_text,
    outputs,
    to_text,
)
from reservation.idempotence.state_based.states import (
    Built,
    HandledMessage,
    States,
    StreamStates,
    Version,
)
from reservation.idempotence.state_based.strategy import MOST_DELTAS, state_category, state_stream
from reservation.idempotence.strategy import Incoming
from reservation.messages.message import printable
from reservation.messages.stream_name import category
from reservation.serialization import codec
from reservation.store.client import MessageStore
from reservation.store.writing import Row


@dataclass(slots=True)
class PendingOutputs:
    """What follows the states of a batch, once they are stored.

    Attributes:
        rows: the outputs, as they are written.
        versions: those whose outputs they are, by stream and position.
        counts: how many messages were handled, redelivered (handled again), or differing (handled
            again, and otherwise).
    """

    rows: list[Row] = field(default_factory=list)
    versions: list[tuple[str, int]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def categories(self) -> list[str]:
        """The categories that are going to be written, each once."""
        return list({category(name) for _, name, *_ in self.rows})


@dataclass(frozen=True, slots=True)
class _Handled:
    """What became of one call of a handler: the state after it, its outputs, what it was given."""

    state: str
    rows: list[Row]
    outputs: str
    given: str


@dataclass(slots=True)
class _Newest:
    """The newest version of a stream: its position, and the state."""

    position: int
    state: Built


class StateHandling:
    """How one consumer of a component deals with messages in two steps."""

    def __init__(
        self,
        connection: Connection[Any],
        component: Component,
        category: str,
        moves: Callable[[], None],
        log: Log,
    ) -> None:
        """Prepare to deal with a category.

        Args:
            connection: that of the transactions that read and write the batches.
            component: whose handlers decide.
            category: the category that the messages are read from.
            moves: called before each handler is, as a sign that the process is not stuck.
            log: where it is told what a handler did wrong.
        """
        self._connection = connection
        self._moves = moves
        self._component = component
        self._category = category
        self._log = log

    @property
    def categories(self) -> list[str]:
        """The categories of states that are written, so that others can be held off."""
        return [state_category(self._component.name)] if self._component.state_based else []

    def store(self, batch: Sequence[Incoming]) -> PendingOutputs:
        """Handle a batch in its order, and store the states of those that are new.

        Raises:
            MessageError: one of the messages can not be dealt with.
            ExpectedVersionError, SerializationError: another writer was first; run it again.
        """
        states = States(self._connection)
        streams = [_stream(incoming) for incoming in batch]
        ids = [incoming.message.id for incoming in batch]
        found = states.look(list(zip(streams, ids, strict=True)))
        read = states.read(
            (stream, one.newest if one.known is None else one.known.position - 1)
            for stream, one in zip(streams, found, strict=True)
        )
        newest: dict[str, _Newest] = {}
        versions: list[Version] = []
        result = PendingOutputs()
        for incoming, stream, one in zip(batch, streams, found, strict=True):
            if one.known is not None:
                before = self._before(incoming, read, stream, one.known.position)
                rows, outcome = self._again(incoming, stream, before, one.known)
                result.rows.extend(rows)
                result.versions.append((stream, one.known.position))
                result.counts[outcome] += 1
                continue
            self._refuse_expired(incoming, stream, one)
            if stream not in newest:
                newest[stream] = self._newest(read, stream, one.newest)
            handled = self._call(incoming, newest[stream].state.text)
            version = self._version(incoming, stream, newest[stream], handled)
            newest[stream] = _Newest(version.position, Built(handled.state, version.base))
            versions.append(version)
            result.rows.extend(handled.rows)
            result.versions.append((stream, version.position))
            result.counts["handled"] += 1
        states.append(versions)
        return result

    def publish(self, published: PendingOutputs, *, careful: bool) -> None:
        """Write the outputs of stored versions, and mark these, in one transaction.

        Raises:
            MessageError: the store refuses an output.
            MessageIdConflictError: an id of an output is in use; once more, carefully, that is a
                MessageError.
        """
        try:
            MessageStore(self._connection).write_encoded(published.rows)
        except (RefusedError, MessageIdConflictError) as error:
            if isinstance(error, MessageIdConflictError) and not careful:
                raise
            raise MessageError(
                f"Cannot publish what follows {_named(published)}: {error}"
            ) from error
        States(self._connection).publish(published.versions)

    def _before(
        self,
        incoming: Incoming,
        read: dict[tuple[str, int], Built],
        stream: str,
        position: int,
    ) -> str:
        """Return the state as it was before the first handling of a message."""
        if position == 0:
            return self._initial
        before = read.get((stream, position - 1))
        if before is None:
            raise _expired(incoming, stream)
        return before.text

    def _newest(self, read: dict[tuple[str, int], Built], stream: str, position: int) -> _Newest:
        """Return the newest version, before which anything new is none."""
        if position < 0:
            return _Newest(position, Built(self._initial, 0))
        state = read.get((stream, position))
        if state is None:
            raise SerializationError(
                f"Versions of {printable(stream)} were removed while they were read; run the "
                f"batch again"
            )
        return _Newest(position, state)

    @property
    def _initial(self) -> str:
        """The state before the first version."""
        entity: Any = self._component.entity
        return codec.encode(entity())

    def _refuse_expired(self, incoming: Incoming, stream: str, found: StreamStates) -> None:
        """Refuse a message that may have made a version that was removed."""
        if incoming.message.global_position <= found.expired.get(self._category, 0):
            raise _expired(incoming, stream)

    def _again(
        self, incoming: Incoming, stream: str, before: str, known: HandledMessage
    ) -> tuple[list[Row], str]:
        """Handle a message again, and return what it published at first, and what became of it."""
        message = incoming.message
        try:
            handled = self._call(
                incoming, before, msgspec.json.decode(known.given, type=HandlerInputs)
            )
            if digest(handled.outputs) == known.outputs_hash:
                return handled.rows, "redelivered"
            reason = "they are not the same"
        except MessageError as error:
            reason = str(error)
        self._log.error(
            "outputs_differ",
            type=message.type,
            stream_name=printable(message.stream_name),
            global_position=message.global_position,
            state_stream=printable(stream),
            state_position=known.position,
            reason=reason,
        )
        return from_text(known.outputs), "differing"

    def _call(self, incoming: Incoming, text: str, given: HandlerInputs | None = None) -> _Handled:
        """Call the handler of a message on a state, and return what became of both."""
        self._moves()
        message, component = incoming.message, self._component
        entity: Any = component.entity
        try:
            state = codec.decode(entity, text)
        except Exception as error:  # a class may check itself as it likes
            raise DecodeError(
                f"Cannot handle {message}: its state is none of {entity.__name__}: "
                f"{codec.explain(error)}. Let the class read what it has written: give new fields "
                f"a default"
            ) from error
        context = Context(
            message,
            entity_stream=incoming.entity_stream,
            given=given,
            unordered=incoming.unordered,
        )
        handler = component.handlers[message.type]
        events = call(
            self._connection,
            message,
            lambda: events_of(
                handler(incoming.command, state, context), message, component.commands
            ),
        )
        rows = outputs(message, incoming.entity_stream, events, context.writes)
        after = encode_state(state, message)
        return _Handled(after, rows, to_text(rows), msgspec.json.encode(context.given).decode())

    def _version(
        self, incoming: Incoming, stream: str, newest: _Newest, handled: _Handled
    ) -> Version:
        message, position, before = incoming.message, newest.position + 1, newest.state
        as_delta = (
            self._component.state_based[message.type].state == "delta"
            and position > 0
            and position - before.base <= MOST_DELTAS
        )
        return Version(
            stream,
            position,
            uuid.UUID(message.id),
            self._category,
            message.global_position,
            base=before.base if as_delta else position,
            state=difference(before.text, handled.state) if as_delta else handled.state,
            given=handled.given,
            outputs=handled.outputs,
            outputs_hash=digest(handled.outputs),
        )


def _stream(incoming: Incoming) -> str:
    try:
        return state_stream(incoming.entity_stream)
    except StreamNameError as error:
        raise IdempotenceKeyError(f"Cannot keep a state for {incoming.message}: {error}") from error


def _expired(incoming: Incoming, stream: str) -> ExpiredError:
    return ExpiredError(
        f"Whether {incoming.message} was handled before can not be known: versions of "
        f"{printable(stream)} up to its time were removed. If it is new, send it again under a new "
        f"id; keep versions for longer with StateBased(window=...)"
    )


def _named(published: PendingOutputs) -> str:
    stream, position = published.versions[0]
    more = len(published.versions) - 1
    return f"the version {position} of {printable(stream)}" + (f" and {more} more" if more else "")
