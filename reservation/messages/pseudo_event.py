"""The pseudo event: written to an entity's stream for a message that led to no event.

It records that the message was handled, which its metadata says. Projections skip it, consumers
ignore it, and a stream that holds nothing else counts as not started. (Source: the pseudo events of
Richardson, *Microservices Patterns*, 6.1.6.)

A rejection is a pseudo event with data: which command was rejected, and why. The type is the same,
so that readers which know nothing of rejections pass over it: Eventide's consumers
and projections. One that answers a command that initiates starts the stream nevertheless: the
command has been decided on, and its id is used up.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from reservation.messages.message import StoredMessage


@dataclass(frozen=True, slots=True)
class PseudoEvent:
    """Records that a message was handled, and nothing else."""


PSEUDO_EVENT = PseudoEvent.__name__

# The local property of events that start a stream after nothing but pseudo events. It holds the
# position of the first of them, so that who reads only first messages, such as a reconciliation,
# finds it.
FIRST = "first"


@dataclass(frozen=True, slots=True)
class Rejection:
    """Records that a command was rejected; stored under the type ``PseudoEvent``.

    Attributes:
        rejected: the type of the command, as it is stored.
        reason: why it was rejected, as its handler said.
        initiation: whether the command was to start the entity's stream.
    """

    __omit_defaults__: ClassVar[bool] = True
    __stored_as__: ClassVar[str] = PSEUDO_EVENT

    rejected: str
    reason: str
    initiation: bool = False


def rejection_of(event: StoredMessage) -> Rejection | None:
    """Return the rejection in an event; None if the event is none."""
    if event.type != PSEUDO_EVENT or event.data is None or event.data == "{}":
        return None
    try:
        return _decoder.decode(event.data)
    except msgspec.MsgspecError:  # some other data that a client has written
        return None


def starts(event: StoredMessage) -> bool:
    """Return whether an event starts its entity's stream, if it is the first that does."""
    if event.type != PSEUDO_EVENT:
        return True
    if event.data is None or event.data == "{}":
        return False
    try:
        return _mark.decode(event.data).initiation is True
    except msgspec.MsgspecError:
        return False


class _Mark(msgspec.Struct):
    """The part of a pseudo event that tells if it starts a stream; any JSON value."""

    initiation: Any = None


_decoder = msgspec.json.Decoder(Rejection)
_mark = msgspec.json.Decoder(_Mark)
