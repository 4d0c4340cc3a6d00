"""A command that starts its entity's stream, and the types of declared functions once declared."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from reservation.context import Context

# Any: handlers take the component's own commands and entity, and return its own events.
Handler = Callable[[Any, Any, Context], Any]
Initiator = Callable[[Any, Context], Any]


@dataclass(frozen=True, slots=True)
class Initiation:
    """A command whose handler starts the entity's stream, and so is its own reservation.

    Attributes:
        command: the command's dataclass.
        handler: returns the first event or events of the stream.
        volatile: fields in which a reissue may differ from the first issue.
    """

    command: type
    handler: Initiator
    volatile: tuple[str, ...] = ()
