"""Handling the events of a read model: calling its handlers, which change rows and write nothing.

Events are handled in the order of their positions. Those that follow each other and have the same
handler of many go to it in one call, so its rows are those of one call for each, if it keeps what
`ReadModel.handle_many` asks for. If such a call fails, each of its events is handled by itself.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

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
        together: list[Decoded] = []
        for item in decoded:
            one = self._declared[item.message.type]
            if together and self._declared[together[0].message.type].handler is not one.handler:
                self._handle_all(together, effects, blocking)
                together = []
            # The first is handled in any case, so that there is something to commit.
            if not together and self._context.is_paused and item is not decoded[0]:
                if not are_letters:
                    effects.ends_before = item.message
                    return
                blocking.runs(item.message, self._entity_of(item.message, item))
                continue
            if blocking.heads and blocking.parks(item.message, self._entity_of(item.message, item)):
                continue
            if self._messages.is_paused(item):
                blocking.waits(item.message, self._entity_of(item.message, item), PAUSED)
                continue
            together.append(item)
            if are_letters or not one.many:
                self._handle_all(together, effects, blocking)
                together = []
        if together:
            self._handle_all(together, effects, blocking)

    def _handle_all(self, items: Sequence[Decoded], effects: Effects, blocking: Blocking) -> None:
        """Handle events in one call; set one aside that fails, if what it did can be undone."""
        message = items[0].message
        try:
            with self._spans(items):
                self._call(items, effects)
        except HandlerRaisedError as error:
            if not self._messages.undo(error):
                raise (error if len(items) == 1 else _of_many(items, error)) from error.__cause__
            if len(items) == 1:
                blocking.fails(message, self._entity_of(message, items[0]), error)
                return
            for item in items:
                if not blocking.parks(item.message, self._entity_of(item.message, item)):
                    self._handle_all([item], effects, blocking)
        except MessageError as error:
            if len(items) > 1:
                raise _of_many(items, error) from error
            error.global_position = message.global_position
            raise

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
        kind = UndoableContext if self._messages.is_undoable(message.type) else LendingContext
        context = kind(message, connection=self._context.connection)
        given = [Recorded(item.command, item.message) for item in items]

        def handle() -> list[object]:
            if one.handler(given if one.many else items[0].command, ReadContext(context)) is None:
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


def _of_many(items: Sequence[Decoded], error: MessageError) -> HandlerError:
    """Return the error of a call for several events, which names none of them."""
    return HandlerError(
        f"The handler of {len(items)} messages from {items[0].message} raised "
        f"{describe(error.__cause__ or error)}"
    )
