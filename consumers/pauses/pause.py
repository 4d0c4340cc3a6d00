"""A pause: what it is of, who paused that, why, and since when."""

from dataclasses import dataclass
from datetime import datetime

from reservation.errors import ReservationError
from reservation.messages.message import printable


class PauseError(ReservationError):
    """There is nothing to pause or to resume under these names, or it is paused already."""


@dataclass(frozen=True, slots=True, order=True)
class Scope:
    """What is paused: all that a component reads, or less; what is None does not narrow it.

    Attributes:
        component: the component's name.
        category: what it reads of this category.
        type: messages of this type, before their handler is called.
        entity: messages of this entity, named by its stream.
    """

    component: str
    category: str | None = None
    type: str | None = None
    entity: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether a consumer stops, rather than setting single messages aside."""
        return self.type is None and self.entity is None

    def __str__(self) -> str:
        """Name it in a sentence."""
        of = printable(self.component)
        if self.category is not None:
            of += f" of {printable(self.category)}"
        if self.entity is not None:
            of = f"{printable(self.entity)} in {of}"
        return of if self.type is None else f"{printable(self.type)} in {of}"


@dataclass(frozen=True, slots=True)
class StoredPause:
    """A pause as it is stored.

    Attributes:
        scope: what is paused.
        reason: why.
        paused_by: who paused it: the person whom a program names, or the database user.
        paused_at: since when.
    """

    scope: Scope
    reason: str
    paused_by: str
    paused_at: datetime

    def __str__(self) -> str:
        """Say it in a few words."""
        return f'paused by {printable(self.paused_by)}: "{printable(self.reason)}"'
