"""Which messages of a batch are handled, which are dead letters, and which wait behind those.

A message that cannot be handled becomes a dead letter, and its entity is blocked: later messages of
the same entity are parked behind it, so that every entity sees its messages in order. Other
entities go on. (The idea is that of Axon's sequenced dead-letter queue.)
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from consumers.dead_letters.failure import Failure, Letter, Reason
from consumers.decisions.decisions import Decisions
from reservation.errors import MessageError
from reservation.messages.message import StoredMessage

# Bytes of an entity's name that an index is sure to take beside a consumer's and a category's.
_LONGEST = 1000

_PARKED = Failure(Reason.PARKED, "")


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """What a batch does with messages that cannot be handled.

    Attributes:
        blocked: the entities whose messages are parked; only read.
        given_up: by global position, the messages that are no longer tried: why, and after how
            many attempts.
        stop: whether to raise the error instead.
    """

    blocked: set[str] = field(default_factory=set)
    given_up: Mapping[int, tuple[Failure, int]] = field(default_factory=dict)
    stop: bool = False

    def gives_up(self, message: StoredMessage, reason: Reason) -> bool:
        """Return whether a message is given up for a reason."""
        given_up = self.given_up.get(message.global_position)
        return given_up is not None and given_up[0].reason is reason


# For a batch that must succeed as a whole: nothing is parked, and every error is raised.
ALL_OR_NOTHING = FailurePolicy(stop=True)


class Blocking:
    """The letters of one batch, while it is decided on."""

    def __init__(self, policy: FailurePolicy, decisions: Decisions) -> None:
        """Prepare.

        Args:
            policy: what applies.
            decisions: where the letters are collected and counted.
        """
        self._policy = policy
        self._decisions = decisions
        self._blocked_here: set[str] = set()

    @property
    def anything_blocked(self) -> bool:
        """Whether messages may have to be parked; if not, their entities need not be known."""
        return bool(self._policy.blocked or self._blocked_here or self._policy.given_up)

    def takes(self, message: StoredMessage, entity: str | None) -> bool:
        """Take a message if it must not be handled: it was given up, or its entity is blocked.

        Returns whether it was taken.
        """
        given_up = self._policy.given_up.get(message.global_position)
        if self._is_blocked(entity):
            self._add(Letter(message, entity, _PARKED))
        elif given_up is not None:
            self._bury(Letter(message, entity, *given_up))
        else:
            return False
        return True

    def fails(self, message: StoredMessage, entity: str | None, error: MessageError) -> None:
        """Make a message a dead letter because of an error, unless that is to be raised.

        Raises:
            MessageError: the error, if another attempt may succeed or the policy is to stop.
        """
        if self.takes(message, entity):
            return
        failure = Failure.of(error)
        if self._policy.stop or failure.may_pass:
            raise error
        self._bury(Letter(message, entity, failure, attempts=1))

    def _bury(self, letter: Letter) -> None:
        self._add(letter)
        if letter.entity is not None:
            self._blocked_here.add(letter.entity)

    def _is_blocked(self, entity: str | None) -> bool:
        return entity in self._policy.blocked or entity in self._blocked_here

    def _add(self, letter: Letter) -> None:
        self._decisions.letters.append(letter)
        self._decisions.counts["parked" if letter.parked else "dead"] += 1


def blocking(entity_stream: str) -> str:
    """Return the name under which an entity is blocked: its stream's, shortened if it is long."""
    if len(entity_stream) * 4 <= _LONGEST or len(entity_stream.encode()) <= _LONGEST:
        return entity_stream
    return f"{entity_stream[:50]}…{hashlib.sha256(entity_stream.encode()).hexdigest()}"
