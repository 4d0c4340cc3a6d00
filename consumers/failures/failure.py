"""Failures to handle a message, in words that contain nothing of its data."""

import hashlib
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal

from consumers.failures.error_text import text_of, traceback_of
from consumers.runtime.observability.error_detail import PLACE_ONLY, ErrorDetail
from reservation.effects import faults
from reservation.effects.faults import RaisedByHandlerError, TakenIdError
from reservation.errors import (
    DecodeError,
    EncodeError,
    ExpiredError,
    HandlerError,
    IdempotenceKeyError,
    MessageError,
    ReservationError,
    UnknownEventError,
    UnknownTypeError,
)
from reservation.messages.message import StoredMessage
from reservation.raised import place_of, type_of


class Crashed(ReservationError):
    """An exception that is not one of ours ended a consumer, in the middle of its messages.

    It left its group as a killed process does, so the next holder counts attempts.
    """

    is_about_data = True


@dataclass(frozen=True, slots=True)
class ProviderFailure:
    """A failure of the provider that a handler calls, as its breaker has counted it.

    Attributes:
        is_probe: whether it was the one attempt that an open breaker lets be made.
        is_alone: whether the handler had succeeded since its last failure, so that the message may
            be at fault.
        wait: seconds until the next attempt; None if the breaker is closed.
        pause: seconds until the next attempt if it would have been the last, but for the provider.
    """

    is_probe: bool
    is_alone: bool
    wait: float | None
    pause: float


class HandlerRaisedError(RaisedByHandlerError):
    """A handler raised; what it did for its message may have to be undone.

    Attributes:
        message: the message that it was called for.
        entity_stream: the stream of its entity; None if that is not known.
        undo: takes back what the handler did, and returns whether that was possible.
        of_provider: what is known of the handler's provider, if it is a failure of that.
    """

    def __init__(self, text: str, message: StoredMessage) -> None:
        super().__init__(text, message)
        self.global_position = message.global_position
        self.entity_stream: str | None = None
        self.undo: Callable[[], bool] = _cannot_undo
        self.of_provider: ProviderFailure | None = None


def _cannot_undo() -> bool:
    """Return False: nothing can be undone."""
    return False


class Reason(StrEnum):
    """The reason a message was set aside: its fault, or what it waits for."""

    HANDLER = "handler"
    UNDECODABLE = "undecodable"
    UNKNOWN_TYPE = "unknown_type"
    UNKNOWN_EVENT = "unknown_event"
    KEY = "key"
    EXPIRED = "expired"
    CONFLICT = "conflict"
    WRITE = "write"
    ID_TAKEN = "id_taken"
    PROCESS_DIED = "process_died"
    PARKED = "parked"
    RUNNING = "running"
    BREAKER = "breaker_open"
    LIMITED = "limited"
    PAUSED = "paused"


# The first that an error is an instance of.
_REASONS: tuple[tuple[type[MessageError], Reason], ...] = (
    (DecodeError, Reason.UNDECODABLE),
    (EncodeError, Reason.WRITE),
    (TakenIdError, Reason.ID_TAKEN),
    (UnknownTypeError, Reason.UNKNOWN_TYPE),
    (UnknownEventError, Reason.UNKNOWN_EVENT),
    (IdempotenceKeyError, Reason.KEY),
    (ExpiredError, Reason.EXPIRED),
    (HandlerError, Reason.HANDLER),
    (MessageError, Reason.WRITE),
)

# For these only what is stored matters, so another attempt fails too.
PERMANENT = frozenset(
    {
        Reason.UNDECODABLE,
        Reason.UNKNOWN_TYPE,
        Reason.UNKNOWN_EVENT,
        Reason.KEY,
        Reason.EXPIRED,
        Reason.CONFLICT,
        Reason.ID_TAKEN,
        Reason.PROCESS_DIED,
    }
)


# Of what has not failed: the handler may not be called yet, which takes no attempt.
HELD_UP = frozenset({Reason.LIMITED, Reason.BREAKER, Reason.PAUSED})


@dataclass(frozen=True, slots=True)
class Failure:
    """A message's failure, and the time of its next attempt.

    Attributes:
        reason: the kind of fault.
        error: one line for people, without anything of the message's data.
        digest: of the place where it was raised: the same for the same fault, whichever message
            met it; None where nothing was raised.
        attempts: how often the message was tried so far.
        wait: seconds until its next attempt; None if there is none.
        error_type: the full name of the class of the exception that the component's code raised;
            None if it raised none.
        error_place: the deepest place in the component's own code where it was raised; None if
            there is none.
        error_text: its text, where that is stored.
        error_traceback: its traceback, where that is stored.
        exception: the exception itself, where that is reported; ours if the component raised none.
        entity_stream: the stream of the message's entity, where a handler was called with it.
        rate: the name of the rate that the message waits for; None if it waits for none. Then its
            time follows those of the letters that wait for it already, and `wait` is the least.
        interval: the seconds between two calls of that rate.
    """

    reason: Reason
    error: str = ""
    digest: str | None = None
    attempts: int = 0
    wait: float | None = None
    error_type: str | None = None
    error_place: str | None = None
    error_text: str | None = None
    error_traceback: str | None = None
    exception: BaseException | None = field(default=None, compare=False, repr=False)
    entity_stream: str | None = None
    rate: str | None = None
    interval: float | None = None

    @classmethod
    def of(
        cls,
        error: MessageError,
        detail: ErrorDetail = PLACE_ONLY,
        *,
        attempts: int = 1,
        wait: float | None = None,
    ) -> "Failure":
        """Return the failure that an error stands for, with what is to be stored of it."""
        raised, place = _raised(error)
        stored = raised if detail.text else None
        return cls(
            reason_of(error),
            str(error),
            digest_of(error),
            attempts,
            wait,
            error_type=None if raised is None else type_of(raised),
            error_place=place,
            error_text=None if stored is None else text_of(stored),
            error_traceback=None if stored is None else traceback_of(stored),
            exception=(raised or error) if detail.exceptions else None,
            entity_stream=error.entity_stream if isinstance(error, HandlerRaisedError) else None,
        )


@dataclass(frozen=True, slots=True)
class Unhandled:
    """A message of a batch that was not handled.

    Attributes:
        message: the message.
        entity: whose later messages wait behind it; None if none do.
        failure: why.
    """

    message: StoredMessage
    entity: str | None
    failure: Failure

    @property
    def state(self) -> Literal["waiting", "parked", "dead"]:
        """The state from now on."""
        if self.failure.reason is Reason.PARKED:
            return "parked"
        return "dead" if self.failure.wait is None else "waiting"

    @property
    def is_held_up(self) -> bool:
        """Whether it has not failed: its handler may not be called yet."""
        return self.failure.reason in HELD_UP and not self.failure.error

    @property
    def runs(self) -> bool:
        """Whether it has not failed: its async call goes on, or has not begun."""
        return self.failure.reason is Reason.RUNNING


def states_of(letters: Iterable[Unhandled]) -> dict[int, str]:
    """Return the states of messages by their global positions, but for those that still run."""
    return {one.message.global_position: one.state for one in letters if not one.runs}


def reason_of(error: MessageError) -> Reason:
    """Return the kind of fault that an error stands for."""
    return next(reason for kind, reason in _REASONS if isinstance(error, kind))


def process_died(what: str, attempts: int) -> Failure:
    """Return the failure of a message that ended every process that handled it."""
    return Failure(
        Reason.PROCESS_DIED,
        f"The process ended while it handled {what}, {attempts} times: it was killed, or ran out "
        f"of memory, or the handler ended it, or it crashed; then its log has `consumer_crashed`, "
        f"or its last line says where",
        attempts=attempts,
    )


def conflict(message: StoredMessage, key_stream: str) -> Failure:
    """Return the failure of a command whose key a command of different content has."""
    return Failure(Reason.CONFLICT, faults.conflict(message, key_stream), attempts=1)


def _raised(error: MessageError) -> tuple[BaseException | None, str | None]:
    """Return the exception of the component's code that an error stands for, and its place.

    An error of ours may have been raised in a function that the component called, such as
    `Context.write`. Then it has a place in the component's code, and otherwise it says all itself.
    """
    cause = error.__cause__
    if cause is not None and (
        isinstance(error, HandlerRaisedError) or not isinstance(cause, ReservationError)
    ):
        return cause, place_of(cause)
    place = place_of(error)
    return (None if place is None else error), place


def digest_of(error: BaseException) -> str:
    """Return a short hash of an exception's class and of the places in its traceback.

    If the exception has a cause, the hash is of the cause: the framework's own error for a fault
    may differ from message to message.
    """
    lines = list(_places(error.__cause__ or error))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _places(error: BaseException) -> Iterator[str]:
    yield f"{type(error).__module__}.{type(error).__qualname__}"
    for frame, line in traceback.walk_tb(error.__traceback__):
        yield f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}:{line}"
