"""The outputs of a two-phase strategy, whose states have to be committed first."""

from collections import Counter
from dataclasses import dataclass, field

from reservation.idempotence.passes import Pass
from reservation.idempotence.strategy import TwoPhaseCheck
from reservation.messages.stream_name import category
from reservation.store.writing.scheduling import ScheduledRow
from reservation.store.writing.write import Row


@dataclass(slots=True)
class PendingOutputs:
    """What is published for a batch in its second transaction.

    Attributes:
        check: what the strategy found out and stored, to be marked as published.
        rows: the outputs, as they are written.
        scheduled: those that are written later.
        counts: how many messages were handled, rejected, redelivered (handled again), or
            differing (handled again, with another result).
        passes: messages of a subscribed category of which no output is an event.
    """

    check: TwoPhaseCheck
    rows: list[Row] = field(default_factory=list)
    scheduled: list[ScheduledRow] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    passes: list[Pass] = field(default_factory=list)

    @property
    def categories(self) -> list[str]:
        """The categories that are going to be written, each once."""
        return list({category(row.stream_name) for row in self.rows})
