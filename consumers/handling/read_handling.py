"""Handling the events of a read model: calling its handlers, which change rows and write nothing.

Events are handled in the order of their positions. Those that follow each other and have the same
handler of many go to it in one call, so its rows are those of one call for each, if it keeps what
`ReadModel.handle_many` asks for. If such a call fails, each of its events is handled by itself.

The statements of a batch's calls are sent together. If anything fails, all of them are taken back,
and each call is made once more, with its statements sent at once; so the error is that of its
event.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import NoReturn

from consumers.calls.handler_call import raised
from consumers.calls.lending import LendingContext
from consumers.calls.undoing import UndoableContext
from consumers.effects.blocking import Blocking
from consumers.effects.effects import Effects
from consumers.failures.failure import HandlerRaisedError
from consumers.handling.decoding import Decoded, Decoding
from consumers.handling.message_handling import PAUSED, MessageHandling
from consumers.runtime.context import ConsumerContext
from reservation.declaration.table import declarations
from reservation.errors import HandlerError, MessageError
from reservation.handlers.reading import ReadContext, Recorded
from reservation.handlers.reject import Reject
from reservation.postgres.exchange.deferring import TakenBackError
from reservation.postgres.exchange.keeping_connection import is_together, keeps_statements
from reservation.raised import describe


class ReadHandling:
    """Handles the events of a category for one consumer of a read model."""

    def __init__(
        self, context: ConsumerContext, messages: MessageHandling, decoding: Decoding
    ) -> None:
        self._context = context
        self._messages = messages
        self._entity_of = decoding.entity_of
        self._declared = declarations(context.component).of(context.category)

    def run(self, decoded: Sequence[Decoded], effects: Effects, blocking: Blocking) -> None:
        """Handle the events of a batch, or letters, in their order."""
        are_letters = blocking.policy.tried is not None
        may_wait = are_letters or blocking.heads or self._messages.pauses_some
        if not may_wait and self._run_together(decoded, effects):
            return
        for items in self._calls(decoded, singly=are_letters):
            # The first are handled in any case, so that there is something to commit.
            if self._context.is_paused and items[0] is not decoded[0]:
                if not are_letters:
                    effects.ends_before = items[0].message
                    return
                for item in items:
                    blocking.runs(item.message, self._entity_of(item.message, item))
                continue
            items = [item for item in items if not self._waits(item, blocking)]
            if items:
                self._handle_all(items, effects, blocking)

    def _run_together(self, decoded: Sequence[Decoded], effects: Effects) -> bool:
        """Make all calls, and send their statements together; return False if anything failed."""
        connection, losses = self._context.connection, self._context.losses
        if (
            not keeps_statements(connection)
            or self._context.spans.tracing is not None  # the spans take as long as the calls
            or decoded[0].message.global_position <= losses.singly_until
        ):
            return False
        handled = effects.counts["handled"]
        try:
            with connection.together(self._context.heartbeat):
                for items in self._calls(decoded):
                    paused = self._context.is_paused or self._messages.pauses_some
                    if paused and items[0] is not decoded[0]:
                        effects.ends_before = items[0].message
                        break
                    try:
                        self._call(items, effects)
                    except MessageError as error:
                        _raise_named(error, items)
        except TakenBackError:
            effects.counts["handled"], effects.ends_before = handled, None
            return False
        except BaseException:
            if connection.broken:
                losses.singly_until = decoded[-1].message.global_position
            raise
        return True

    def _calls(
        self, decoded: Sequence[Decoded], *, singly: bool = False
    ) -> Iterator[Sequence[Decoded]]:
        """Give the events of each call."""
        together: list[Decoded] = []
        handler: object = None
        for item in decoded:
            one = self._declared[item.message.type]
            if together and (singly or not one.many or one.handler is not handler):
                yield together
                together = []
            together.append(item)
            handler = one.handler
        if together:
            yield together

    def _waits(self, item: Decoded, blocking: Blocking) -> bool:
        """Set an event aside that waits behind another, or is paused; return whether it does."""
        if blocking.heads and self._parks(item, blocking):
            return True
        if self._messages.is_paused(item):
            blocking.waits(item.message, self._entity_of(item.message, item), PAUSED)
            return True
        return False

    def _parks(self, item: Decoded, blocking: Blocking) -> bool:
        return blocking.parks(item.message, self._entity_of(item.message, item))

    def _handle_all(self, items: Sequence[Decoded], effects: Effects, blocking: Blocking) -> None:
        """Handle events in one call; set one aside that fails, if what it did can be undone."""
        message = items[0].message
        try:
            with self._spans(items):
                self._call(items, effects)
        except HandlerRaisedError as error:
            if not self._messages.undo(error):
                _raise_named(error, items)
            if len(items) == 1:
                blocking.fails(message, self._entity_of(message, items[0]), error)
                return
            for item in items:
                if not self._parks(item, blocking):
                    self._handle_all([item], effects, blocking)
        except MessageError as error:
            _raise_named(error, items)

    @contextmanager
    def _spans(self, items: Sequence[Decoded]) -> Iterator[None]:
        """Run a call in a span of each of its messages, because each has a trace of its own."""
        spans, consumer = self._context.spans, self._context.component.name
        with ExitStack() as stack:
            wanted = items if spans.tracing is not None else ()
            entered = [stack.enter_context(spans.handling(one.message, consumer)) for one in wanted]
            yield
            for span in filter(None, entered):
                span.outcome = "handled"

    def _call(self, items: Sequence[Decoded], effects: Effects) -> None:
        first, message = items[0].message, items[-1].message
        one = self._declared[message.type]
        self._context.log_context.enter_message(first, first.stream_name)
        self._context.calls(first.global_position)
        connection = self._context.connection
        undoes = self._messages.is_undoable(message.type) and not is_together(connection)
        context = (UndoableContext if undoes else LendingContext)(message, connection=connection)

        def handle() -> list[object]:
            given = [Recorded(item.command, item.message) for item in items] if one.many else None
            if one.handler(given or items[0].command, ReadContext(context)) is None:
                return []
            raise HandlerError(
                f"The handler of {message} returned something; a handler of a read model changes "
                f"rows, and returns None"
            )

        try:
            self._messages.call(message, handle, context)
        except Reject as error:
            raise self._undoable(raised(message, error), items[0], context, effects) from error
        except HandlerRaisedError as error:
            raise self._undoable(error, items[0], context, effects) from error.__cause__
        if isinstance(context, UndoableContext):
            context.keep()
        effects.counts["handled"] += len(items)

    def _undoable(
        self,
        error: HandlerRaisedError,
        item: Decoded,
        context: LendingContext,
        effects: Effects,
    ) -> HandlerRaisedError:
        error.entity_stream = item.entity_stream
        error.undo = partial(self._messages.undo_call, item, context, effects)
        return error


def _raise_named(error: MessageError, items: Sequence[Decoded]) -> NoReturn:
    """Raise the error of a call; it names its event, or none of several."""
    if len(items) == 1:
        error.global_position = items[0].message.global_position
        raise error
    cause = error.__cause__ or error
    raise HandlerError(
        f"The handler of {len(items)} messages from {items[0].message} raised {describe(cause)}"
    ) from cause
