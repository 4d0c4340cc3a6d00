"""Messages of a two-phase strategy, whose handlers have a state of which every version is kept.

The messages of a batch are handled here, each on the newest state or, if it has been handled, on
the state as it was then, and the new versions are stored. When that is committed, the outputs of
the handlers are published. (See `reservation.idempotence.strategy.TwoPhaseStrategy`.)
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import msgspec

from consumers.calls.handler_call import call
from consumers.dead_letters.failure import HandlerRaisedError
from consumers.decisions.pending_outputs import PendingOutputs
from consumers.runtime.context import ConsumerContext
from reservation.context import Context, HandlerInputs
from reservation.effects.deciding import decide_two_phase, invoke, rejection, state_of
from reservation.errors import MessageError
from reservation.handlers.reject import Reject
from reservation.idempotence.passes import Pass
from reservation.idempotence.state_based.outputs import digest, from_text, to_text
from reservation.idempotence.strategy import Incoming, TwoPhaseCheck
from reservation.messages.comparison import same_content
from reservation.messages.message import StoredMessage, printable
from reservation.store.writing.scheduling import ScheduledRow
from reservation.store.writing.write import Row


@dataclass(frozen=True, slots=True)
class _HandlerResult:
    """What one call of a handler left: the state after it, its outputs, what it was given.

    The outcome is "handled" or "rejected".
    """

    state: str
    rows: list[Row]
    scheduled: list[ScheduledRow]
    outputs: str
    given: str
    outcome: str = "handled"


class TwoPhaseHandling:
    """How one consumer of a component handles messages of two-phase strategies."""

    def __init__(self, context: ConsumerContext) -> None:
        """Prepare to handle the messages of a consumer's category."""
        self._context = context
        self._commands = context.component.commands
        self._declared = context.component.declared_in(context.category)
        self._is_subscribed = context.category in context.component.subscribed
        self._strategies = self._declared.two_phase

    def store(self, batch: Sequence[Incoming]) -> PendingOutputs:
        """Handle a batch in its order, and store the states of those messages that are new.

        Raises:
            MessageError: one of the messages cannot be handled.
            ExpectedVersionError, SerializationError: another writer was first; run it again.
        """
        context = self._context
        strategy = self._strategies[batch[0].message.type]
        check = strategy.begin(context.connection, context.component.name, context.category, batch)
        pending = PendingOutputs(check)
        for incoming in batch:
            try:
                self._add(incoming, pending)
            except MessageError as error:
                error.global_position = incoming.message.global_position
                raise
        check.record()
        return pending

    def _add(self, incoming: Incoming, pending: PendingOutputs) -> None:
        """Handle one message, and add its outputs."""
        check = pending.check
        if check.is_duplicate(incoming):
            rows, scheduled, outcome = self._handle_again(incoming, check)
            check.handled_again(incoming)
            if check.first_handling(incoming).published:
                scheduled = []  # what was cancelled since stays so, although its row is gone
        else:
            with self._context.spans.handling(
                incoming.message, self._context.component.name
            ) as span:
                result = self._call(incoming, check.state_before(incoming))
                if span is not None:
                    span.outcome = result.outcome
            as_delta = self._strategies[incoming.message.type].as_delta
            check.handled(incoming, result.state, result.given, result.outputs, as_delta=as_delta)
            rows, scheduled, outcome = result.rows, result.scheduled, result.outcome
        pending.rows.extend(rows)
        pending.scheduled.extend(scheduled)
        if self._is_subscribed and all(row.stream_name != incoming.entity_stream for row in rows):
            pending.passes.append(Pass.handled(incoming.message, rows))
        pending.counts[outcome] += 1

    def _handle_again(
        self, incoming: Incoming, check: TwoPhaseCheck
    ) -> tuple[list[Row], list[ScheduledRow], str]:
        """Handle a message again, and return what it published at first, and the outcome."""
        message, first = incoming.message, check.first_handling(incoming)
        before = check.state_before(incoming)
        try:
            given = msgspec.json.decode(first.given, type=HandlerInputs)
            with self._context.spans.handling(
                message, self._context.component.name, again=True
            ) as span:
                result = self._call(incoming, before, given)
                if span is not None:
                    span.outcome = "redelivered"
            if digest(result.outputs) == first.outputs_hash:
                return result.rows, result.scheduled, "redelivered"
            stored, scheduled = from_text(first.outputs)
            if self._mean_the_same(
                [*stored, *scheduled], [*result.rows, *result.scheduled], message
            ):
                return stored, scheduled, "redelivered"
            reason = "they are not the same"
        except MessageError as error:
            reason = str(error)
        self._context.log.error(
            "outputs_differ",
            type=message.type,
            stream_name=printable(message.stream_name),
            global_position=message.global_position,
            state_stream=printable(first.stream_name),
            state_position=first.position,
            reason=reason,
        )
        return *from_text(first.outputs), "differing"

    def _mean_the_same(
        self,
        stored: Sequence[Row | ScheduledRow],
        rows: Sequence[Row | ScheduledRow],
        message: StoredMessage,
    ) -> bool:
        """Return whether outputs are the stored ones, but for names and shapes that have changed.

        Raises:
            DecodeError: a stored output cannot be decoded.
        """
        types = self._context.component.types
        for one, other in zip_longest(stored, rows):
            if one is None or other is None or (one[:2], one[5]) != (other[:2], other[5]):
                return False
            if one == other:
                continue
            if one.type not in types or other.type not in types:
                return False
            messages = [_as_stored(row, message) for row in (one, other)]
            before, after = (replace(m.metadata, schema_version=None) for m in messages)
            if before != after:
                return False
            if not same_content(types.decode(messages[0]), types.decode(messages[1])):
                return False
        return True

    def _call(
        self, incoming: Incoming, before: str | None, given: HandlerInputs | None = None
    ) -> _HandlerResult:
        """Call the handler of a message on a state, None for a new one, and return the result."""
        self._context.log_context.enter_message(incoming.message, incoming.entity_stream)
        self._context.heartbeat()
        message, component = incoming.message, self._context.component
        state = state_of(component, before, message)
        context = Context(
            message,
            entity_stream=incoming.entity_stream,
            given=given,
            unordered=incoming.unordered,
        )
        declared = self._declared
        outcome, events = "handled", list[object]()
        try:
            events = call(
                self._context.connection,
                message,
                lambda: invoke(declared, message, incoming.command, state, context, self._commands),
            )
        except HandlerRaisedError as error:
            error.entity_stream = incoming.entity_stream
            raise
        except Reject as reject:
            outcome, events = "rejected", rejection(declared, message, reject, context)
            state = state_of(component, before, message)
        decided, after = decide_two_phase(
            component, message, incoming.entity_stream, events, context, state
        )
        rows, scheduled = [*decided.events, *decided.further], decided.scheduled
        return _HandlerResult(
            after,
            rows,
            scheduled,
            to_text(rows, scheduled),
            msgspec.json.encode(context.given).decode(),
            outcome,
        )


def _as_stored(row: Row | ScheduledRow, cause: StoredMessage) -> StoredMessage:
    """Return an output as it would be read, at a place that says nothing."""
    id_, stream_name, type_, data, metadata, _ = row
    return StoredMessage(str(id_), stream_name, type_, 0, 0, data, metadata, cause.time)
