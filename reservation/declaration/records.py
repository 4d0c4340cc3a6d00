"""The declaration of one message type: a frozen record that everything else uses."""

import builtins
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from reservation.entity.projection import Projector
from reservation.handlers.breaker import Breaker
from reservation.handlers.rate import Rate
from reservation.handlers.retry import Retry
from reservation.idempotence.key import KeyPart
from reservation.idempotence.reserve import Reservation
from reservation.idempotence.strategy import Strategy

# Any: each component has its own message classes, and its own entity.
EntityId = str | Callable[[Any], KeyPart]


class Role(StrEnum):
    """The role of a message type in a component."""

    INITIATE = "initiate"  # a command whose handler starts the stream of its entity
    RESERVE = "reserve"  # a command that is copied under its key, and handled from the copy
    HANDLE = "handle"  # a command that is handled from the command category
    FOLLOW = "follow"  # a message of another category
    READ = "read"  # a message that the tables of a read model are made from
    EVENT = "event"  # an event of the component, or a further message that it writes
    UNDECLARED = "undeclared"


HANDLED = frozenset({Role.INITIATE, Role.RESERVE, Role.HANDLE, Role.FOLLOW, Role.READ})


@dataclass(frozen=True, slots=True)
class MessageDeclaration:
    """The declaration of one message type; a class has one under each of its names.

    Attributes:
        type: the name that messages are stored under.
        message: the class.
        names: the names that messages of the class are stored under, its own first.
        category: the category that its messages are read from: the command category, that of the
            component's events, or that of another component.
        role: what the component does with the messages.
        handler: the function that handles them; None where there is none.
        projector: the function that applies an event to the entity; None where there is none.
        reservation: how a command is reserved; None if it is not.
        once: how a repeated message is recognized; None for a reservation, for a command that
            initiates, and where that is left to the handler.
        ignoring: the fields in which a reissue may differ from the first issue.
        retry: when a message whose handler raised is tried again; None for directly.
        breaker: when messages wait instead of failing; None for never.
        concurrency: how many calls may run at a time; None if the handler is not async.
        rate: how often the handler is called at most; None for no limit.
        id: the field that holds the id of the component's entity, or a function of the message.
        from_position: the global position from which on messages of another category are handled.
        correlated: whether only those are handled whose correlation leads back to the component.
        many: whether the handler takes several messages at once.
    """

    type: str
    message: builtins.type
    names: tuple[str, ...]
    category: str
    role: Role
    handler: Any = None  # Any: its role decides how many arguments it takes
    projector: Projector | None = None
    reservation: Reservation | None = None
    once: Strategy | None = None
    ignoring: tuple[str, ...] = ()
    retry: Retry | None = None
    breaker: Breaker | None = None
    concurrency: int | None = None
    rate: Rate | None = None
    id: EntityId = ""
    from_position: int = 0
    correlated: bool = False
    many: bool = False


# For types without a declaration.
UNDECLARED = MessageDeclaration("", object, (), "", Role.UNDECLARED)
