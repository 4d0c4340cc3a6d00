"""Decoding of the messages of a batch to decide on, and the outcomes of the others."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from consumers.dead_letters.corrections import CorrectedReissues, Corrections, with_data
from consumers.effects.blocking import Blocking
from consumers.effects.effects import Effects
from consumers.failures.failure import Failure, Reason
from consumers.handling.decoding import Decoded, Decoding
from consumers.handling.same_intent import check_same_intent
from consumers.runtime.context import ConsumerContext
from reservation.declaration.table import declarations
from reservation.errors import MessageError
from reservation.messages.message import StoredMessage


class BatchDecoding:
    """Decodes a batch for one consumer of a component."""

    def __init__(
        self,
        context: ConsumerContext,
        decoding: Decoding,
        corrections: Corrections,
    ) -> None:
        self._context = context
        self._declared = declarations(context.component).of(context.category)
        self._decoding = decoding
        self._corrections = corrections
        self._log_context = context.log_context

    def decode(
        self,
        messages: Sequence[StoredMessage],
        key_streams: Sequence[str | None],
        blocking: Blocking,
        handled: frozenset[str],
        effects: Effects,
        as_sent: Mapping[int, StoredMessage],
    ) -> list[Decoded]:
        """Return the messages to decide on, decoded; the others are counted, or dead letters."""
        policy, sets_aside = blocking.policy, blocking.policy.sets_aside
        decoded: list[Decoded] = []
        entity_of = self._decoding.entity_of
        reissues = CorrectedReissues(self._corrections, self._context.connection, messages)
        for message, key_stream in zip(messages, key_streams, strict=True):
            failure = policy.failed.get(message.global_position)
            if failure is not None and self._is_unread(message, failure):
                blocking.sets_aside(message, self._decoding.entity_of_unread(message))
                continue
            if message.id in handled:
                effects.counts["redelivered"] += 1
                decoded.extend(self._redelivered(message, key_stream))
                continue
            try:
                item = self._look(message, key_stream, reissues)
                sent = as_sent.get(message.global_position)
                if sent is not None and item is not None:
                    check_same_intent(self._declared, self._decoding, sent, item)
            except MessageError as error:
                blocking.fails(message, entity_of(message), error)
                continue
            if item is None:
                effects.counts["ignored"] += 1
                continue
            if sets_aside or blocking.heads:  # else entities need not be known
                # Nothing waits for a message whose place in the order is not known.
                unplaced = item.unordered and failure is not None and failure.reason is Reason.KEY
                if blocking.sets_aside(message, entity_of(message, None if unplaced else item)):
                    continue
            decoded.append(item)
        effects.corrected.update(reissues.found)
        self._log_context.leave_message()
        return decoded

    def leave_out(
        self,
        messages: Sequence[StoredMessage],
        decoded: Sequence[Decoded],
        blocking: Blocking,
        handled: frozenset[str],
        effects: Effects,
    ) -> None:
        """Take back what became of the last messages of a batch, because it ends before them."""
        not_ignored = blocking.leave_out(messages[0].global_position)
        not_ignored.update(item.message.global_position for item in decoded)
        for message in messages:
            if message.id in handled:
                effects.counts["redelivered"] -= 1
            elif message.global_position not in not_ignored:
                effects.counts["ignored"] -= 1

    def _is_unread(self, message: StoredMessage, failure: Failure) -> bool:
        """Return whether a message that has failed is set aside without being decoded."""
        if failure.reason is Reason.PROCESS_DIED:
            return not self._decoding.ignores(message)
        return failure.reason is Reason.UNDECODABLE

    def _look(
        self, message: StoredMessage, key_stream: str | None, reissues: CorrectedReissues
    ) -> Decoded | None:
        """Decode a message; one that says what a corrected message said, as that was corrected."""
        if key_stream is None:  # else the server has taken it, and no code of the component runs
            self._log_context.enter_message(message, None)
        try:
            return self._decoding.look(message, key_stream)
        except MessageError:
            data = reissues.data_of(message)
            if data is None:
                raise
        return self._decoding.look(with_data(message, data), None)

    def _redelivered(self, message: StoredMessage, key_stream: str | None) -> Iterator[Decoded]:
        """Give a message that was handled before, if a strategy is to remember it."""
        if message.type in self._declared.strategies:
            with contextlib.suppress(MessageError):
                item = self._decoding.look(message, key_stream)
                if item is not None and item.entity_stream is not None:
                    yield replace(item, redelivered=True)
