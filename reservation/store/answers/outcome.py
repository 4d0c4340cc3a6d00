"""The outcome of a command."""

from dataclasses import dataclass
from typing import Literal, TypeVar

from reservation.messages.message import StoredMessage
from reservation.messages.message_instance import MessageInstance

OutcomeState = Literal["unknown", "pending", "handled", "rejected", "conflict", "dead", "expired"]
Event = TypeVar("Event", bound=MessageInstance)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a command, as `MessageStore.outcome` returns it.

    Everything in it is derived from the log, so it is as durable as the effect of the command, and
    the same however often the command is sent again.

    Attributes:
        state: ``unknown``: no such command is stored. ``pending``: it is stored, and waits to be
            handled, or to be handled again. ``handled``: it has taken effect. ``rejected``: its
            handler raised `Reject`. ``conflict``: another command, of other content, has its key.
            ``dead``: it could not be handled and is a dead letter, or was one and was discarded.
            ``expired``: it was stored, and what showed whether it was handled is no longer kept.
        message: the stored command that stands: the reserved copy, or the command itself; None if
            there is none, or if it was moved to an archive.
        events: the events of its entity that follow from it, in order, decoded where the component
            knows their class, else as they are stored. Pseudo events and rejections are left out.
        reason: why it was rejected or is dead; None in other states.
        stored_events: the same events and those that are left out, as they are stored.
        corrected: whether an operator gave other data for the command to be handled with.
    """

    state: OutcomeState
    message: StoredMessage | None = None
    events: tuple[MessageInstance | StoredMessage, ...] = ()
    reason: str | None = None
    stored_events: tuple[StoredMessage, ...] = ()
    corrected: bool = False

    def events_of(self, class_: type[Event]) -> tuple[Event, ...]:
        """Return the events of one class, in order.

        Args:
            class_: the class; one that the component does not know has none.
        """
        return tuple(event for event in self.events if isinstance(event, class_))

    @property
    def position(self) -> int:
        """The global position of the last event that follows, or else of the command; 0 if none.

        With `ReadModel.wait_for` a reader sees what the command has changed.
        """
        stored = self.stored_events or ((self.message,) if self.message is not None else ())
        return max((message.global_position for message in stored), default=0)

    @property
    def is_settled(self) -> bool:
        """Whether it is decided: no state but ``unknown`` and ``pending`` changes by itself."""
        return self.state not in ("unknown", "pending")
