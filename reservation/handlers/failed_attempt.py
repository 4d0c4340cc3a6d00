"""The failed attempt that a function declared with `Component.on_error` is called with."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

# What becomes of a message whose attempt failed.
Outcome = Literal["waiting", "dead", "stopped"]


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """An attempt to handle a message, and what becomes of the message.

    Attributes:
        consumer: the component's name.
        category: the category that the message was read from.
        message_id: the message's id.
        type: its type.
        stream_name: its stream.
        global_position: where it is in the log; `reservation dead-letters` names it by this.
        entity: the stream of its entity; None if that is not known.
        attempt: the number of the attempt, from 1.
        outcome: "waiting": it waits for its next attempt; "dead": it is a dead letter; "stopped":
            the consumer stops at it, as ``--stop-on-error`` says.
    """

    consumer: str
    category: str
    message_id: str
    type: str
    stream_name: str
    global_position: int
    entity: str | None
    attempt: int
    outcome: Outcome


ErrorHook = Callable[[BaseException, FailedAttempt], object]
