"""The effects of the messages of a batch, collected before any of them is written."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from consumers.failures.failure import Unhandled, conflict
from reservation.component import Component
from reservation.effects.deciding import apply
from reservation.entity.projection import Loaded
from reservation.idempotence.passes import Pass
from reservation.idempotence.reserve import ReserveOutcome
from reservation.idempotence.strategy import Check, Strategy
from reservation.messages.message import StoredMessage
from reservation.messages.stream_name import category
from reservation.store.writing.scheduling import ScheduledRow
from reservation.store.writing.write import Row


@dataclass(slots=True)
class Effects:
    """The writes of a batch, and the outcomes of its messages.

    Attributes:
        writes: the events, and the further messages that handlers wrote, in order.
        further: those of them that are not events.
        scheduled: the messages that handlers scheduled, in order.
        conditional: whether a handler gave one of the further messages an expected version.
        entities: by their streams, those that the batch was decided on, with its events in them.
        reservations: commands to be reserved, each with the stream that its key names.
        former_streams: by their global position, the streams that some of those may have been
            reserved in before their declaration was changed.
        corrected: by their global position, the data to which some messages have been corrected.
        reissued: commands that found their entity's stream started already, and that stream.
        counts: how many messages were handled, rejected, reserved, duplicates, conflicts,
            ignored, redelivered (handled before and now passed, or handled again on a former
            state), differing (handled again, with another result), dead, waiting for their next
            attempt, or parked.
        conflicts: the commands found in conflict with an earlier one of the same key.
        checks: the checks of the handlers' strategies.
        letters: the messages that were set aside.
        passes: messages of a subscribed category that no event follows from.
        written: how many characters of data the writes have.
        ends_before: the message that the batch ends before, because it has enough to write; None
            if it goes to its end.
    """

    writes: list[Row] = field(default_factory=list)
    further: list[Row] = field(default_factory=list)
    scheduled: list[ScheduledRow] = field(default_factory=list)
    conditional: bool = False
    entities: dict[str, Loaded] = field(default_factory=dict)
    reservations: list[tuple[StoredMessage, str]] = field(default_factory=list)
    former_streams: dict[int, str] = field(default_factory=dict)
    corrected: dict[int, str] = field(default_factory=dict)
    reissued: list[tuple[StoredMessage, str]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    conflicts: list[tuple[StoredMessage, str]] = field(default_factory=list)
    checks: dict[Strategy, Check] = field(default_factory=dict)
    letters: list[Unhandled] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)
    written: int = 0
    ends_before: StoredMessage | None = None

    def add_reservation(
        self, message: StoredMessage, key_stream: str, former_stream: str | None
    ) -> None:
        """Note a command that is to be reserved, and where it may be reserved already."""
        self.reservations.append((message, key_stream))
        if former_stream is not None:
            self.former_streams[message.global_position] = former_stream

    # Any: components have entities of their own.
    def write(self, component: Component[Any], row: Row, message: StoredMessage) -> None:
        """Add what a handler wrote besides the events of an entity that was made from events.

        If its stream is that of another entity of the batch, what is decided on that entity later
        is decided on this message too.
        """
        loaded = self.entities.get(row.stream_name)
        if loaded is not None and row.expected_version in (None, loaded.version):
            row = row._replace(expected_version=loaded.version)
            apply(component, row, loaded, message)
        self.writes.append(row)
        self.written += len(row.data)

    def add_effects(self, effects: "Effects") -> None:
        """Add the effects of one message."""
        self.writes += effects.writes
        self.further += effects.further
        self.conditional |= effects.conditional
        self.reissued += effects.reissued
        self.scheduled += effects.scheduled
        self.passes += effects.passes
        self.counts.update(effects.counts)

    def add_outcome(
        self, message: StoredMessage, stream_name: str, outcome: ReserveOutcome
    ) -> None:
        """Count what became of a command whose key was compared with the stored ones."""
        self.counts[outcome.value] += 1
        if outcome is ReserveOutcome.CONFLICT:
            self.conflicts.append((message, stream_name))
            self.letters.append(Unhandled(message, None, conflict(message, stream_name)))

    @property
    def categories(self) -> list[str]:
        """The categories that are going to be written, each once."""
        categories = {category(row.stream_name) for row in self.writes}
        categories |= {category(name) for _, name in self.reservations}
        return list(categories)
