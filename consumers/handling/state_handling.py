"""Messages whose handlers have a state of which every version is kept, as `StateBased` declares.

A new message is handled on the newest state, and its version is stored with its outputs. One that
has been handled is handled again on the state as it was then; its outputs are written again under
the same ids, and compared with what the handler decided now.
"""

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from consumers.effects.effects import Effects
from consumers.handling.decoding import Decoded
from consumers.runtime.context import ConsumerContext
from reservation.context import Context, HandlerInputs
from reservation.declaration.table import declarations
from reservation.effects.deciding import EncodedEffects, decide_with_state, state_of
from reservation.errors import MessageError
from reservation.idempotence.passes import Pass
from reservation.idempotence.state_based.check import StateCheck
from reservation.idempotence.state_based.outputs import from_text, to_text
from reservation.idempotence.state_based.states import FirstHandling
from reservation.messages.comparison import same_content
from reservation.messages.message import StoredMessage, printable
from reservation.store.writing.scheduling import ScheduledRow
from reservation.store.writing.write import Row


class StateContext(Context):
    """The context of one call on a state.

    Attributes:
        before: the state as JSON text before the call; None for a new one.
        first: the stored first handling; None for a new message.
        state: the state that the handler changes.
    """

    __slots__ = ("before", "first", "state")

    before: str | None
    first: FirstHandling | None
    state: object


class StateHandling:
    """Handles messages of `StateBased` for one consumer of a component."""

    def __init__(self, context: ConsumerContext) -> None:
        declared = declarations(context.component)
        self._context = context
        self._component = context.component
        self._strategies = declared.of(context.category).state_based
        self._awaited = declared.of(context.category).concurrency.keys()
        self._is_subscribed = context.category in declared.others

    def applies_to(self, item: Decoded) -> bool:
        """Return whether the handler of a message has a state."""
        return item.message.type in self._strategies

    def first_handling(self, item: Decoded, effects: Effects) -> FirstHandling | None:
        """Return the stored first handling of a message; None if it is new."""
        return (
            self._check(item, effects).first_handling(item.incoming)
            if self.applies_to(item)
            else None
        )

    def context_of(self, item: Decoded, stream_name: str, effects: Effects) -> StateContext:
        """Return the context for a call, without the batch's connection."""
        check = self._check(item, effects)
        first = check.first_handling(item.incoming)
        context = StateContext(
            item.message,
            entity_stream=stream_name,
            connect=self._context.connect if item.message.type in self._awaited else None,
            given=None if first is None else msgspec.json.decode(first.given, type=HandlerInputs),
            unordered=item.unordered,
            replies_to=declarations(self._component).replies_to,
        )
        context.before, context.first = check.state_before(item.incoming), first
        return context

    def state_of(self, context: StateContext) -> object:
        """Return the state to call a handler with."""
        context.state = state_of(self._component, context.before, context.message)
        return context.state

    def collect(
        self,
        item: Decoded,
        stream_name: str,
        events: Sequence[object],
        context: StateContext,
        effects: Effects,
        outcome: str,
    ) -> str:
        """Collect what a handler wrote, and the version that it made; return the outcome."""
        message, component = item.message, self._component
        try:
            state = self.state_of(context) if outcome == "rejected" else context.state
            decided, after = decide_with_state(
                component, message, stream_name, events, context, state
            )
            if context.first is not None:
                reason = self._difference(decided, context.first, message)
                return self._write_again(item, context.first, effects, reason)
        except MessageError as error:
            if context.first is None:
                raise
            return self._write_again(item, context.first, effects, str(error))
        rows = [*decided.events, *decided.further]
        given = msgspec.json.encode(context.given).decode()
        self._check(item, effects).handled(
            item.incoming,
            after,
            given,
            to_text(rows, decided.scheduled),
            as_delta=self._strategies[message.type].as_delta,
        )
        for row in rows:
            effects.write(component, row, message)
        effects.written += len(after)
        effects.conditional |= any(row.expected_version is not None for row in decided.further)
        effects.scheduled += decided.scheduled
        self._count(item, rows, effects, outcome)
        return outcome

    def keeps_first(self, item: Decoded, error: MessageError, effects: Effects) -> bool:
        """Return whether a message that failed has been handled before; then that stands."""
        first = self.first_handling(item, effects)
        if first is None:
            return False
        self._write_again(item, first, effects, str(error))
        return True

    def _difference(
        self, decided: EncodedEffects, first: FirstHandling, message: StoredMessage
    ) -> str | None:
        """Return in what outputs differ from those of the first handling; None if in nothing."""
        rows = [*decided.events, *decided.further]
        if first.outputs == to_text(rows, decided.scheduled):
            return None
        is_same = self._mean_the_same([*rows, *decided.scheduled], first, message)
        return None if is_same else "they are not the same"

    def _write_again(
        self, item: Decoded, first: FirstHandling, effects: Effects, differs: str | None
    ) -> str:
        """Write the outputs of the first handling again, but for scheduled ones; report others."""
        rows, _ = from_text(first.outputs)
        effects.writes += rows
        effects.written += len(first.outputs)
        outcome = "redelivered" if differs is None else "differing"
        self._count(item, rows, effects, outcome)
        if differs is not None:
            self._context.log.error(
                "outputs_differ",
                type=item.message.type,
                stream_name=printable(item.message.stream_name),
                global_position=item.message.global_position,
                state_stream=printable(first.stream_name),
                state_position=first.position,
                reason=differs,
            )
        return outcome

    def _mean_the_same(
        self,
        rows: Sequence[Row | ScheduledRow],
        first: FirstHandling,
        message: StoredMessage,
    ) -> bool:
        """Return whether outputs are the stored ones, but for changed names and shapes."""
        types = declarations(self._component).types
        written, scheduled = from_text(first.outputs)
        stored: list[Row | ScheduledRow] = [*written, *scheduled]
        if [_place(row) for row in stored] != [_place(row) for row in rows]:
            return False
        for one, other in zip(stored, rows, strict=True):
            if one[:5] == other[:5]:
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

    def _count(self, item: Decoded, rows: Sequence[Row], effects: Effects, outcome: str) -> None:
        if self._is_subscribed and all(row.stream_name != item.entity_stream for row in rows):
            effects.passes.append(Pass.handled(item.message, rows))
        effects.counts[outcome] += 1

    def _check(self, item: Decoded, effects: Effects) -> StateCheck:
        check = effects.checks[self._strategies[item.message.type]]
        assert isinstance(check, StateCheck)  # noqa: S101  it began it
        return check


def _place(row: Row | ScheduledRow) -> tuple[object, ...]:
    """Return the id, the stream and, of one that is written later, the time of an output."""
    return row.id, row.stream_name, row.due if isinstance(row, ScheduledRow) else None


def _as_stored(row: Row | ScheduledRow, cause: StoredMessage) -> StoredMessage:
    """Return an output as it would be read, at a place that says nothing."""
    id_, stream_name, type_, data, metadata, _ = row
    return StoredMessage(str(id_), stream_name, type_, 0, 0, data, metadata, cause.time)
