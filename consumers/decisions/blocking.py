"""Which messages of a batch are handled, which are dead letters, and which wait behind those.

A message that cannot be handled becomes a dead letter, and its entity is blocked: later messages of
the same entity are parked behind it, so that every entity sees its messages in order. Other
entities go on. (The idea is that of Axon's sequenced dead-letter queue.)
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from consumers.dead_letters.failure import Failure, Letter, Reason
from consumers.decisions.decisions import Decisions
from consumers.runtime.observability.error_detail import PLACE_ONLY, ErrorDetail
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
        again: by global position, how often letters that are handled again were tried before; None
            where the messages are read from the category. A letter whose policy has no attempt
            left is dead again, and no error.
        in_part: whether a batch may end before a message whose handler raised, and be committed
            without it.
        looks: whether to look for open letters of the messages' entities in the store, because
            some may be in partitions of others.
    """

    blocked: set[str] = field(default_factory=set)
    given_up: Mapping[int, tuple[Failure, int]] = field(default_factory=dict)
    stop: bool = False
    again: Mapping[int, int] | None = None
    in_part: bool = False
    looks: bool = False

    def gives_up(self, message: StoredMessage, reason: Reason) -> bool:
        """Return whether a message is given up for a reason."""
        given_up = self.given_up.get(message.global_position)
        return given_up is not None and given_up[0].reason is reason

    def tried(self, message: StoredMessage) -> int:
        """Return how often a message was tried before."""
        return 0 if self.again is None else self.again.get(message.global_position, 0)


# For a batch that must succeed as a whole: nothing is parked, and every error is raised.
ALL_OR_NOTHING = FailurePolicy(stop=True)


class Blocking:
    """The letters of one batch, while it is decided on.

    Attributes:
        policy: what applies.
        failed: the entities that are blocked because a handler has failed, or because they have a
            letter in another partition, each with the global position of that message.
    """

    def __init__(
        self, policy: FailurePolicy, decisions: Decisions, detail: ErrorDetail = PLACE_ONLY
    ) -> None:
        self.policy = policy
        self._detail = detail
        self.failed: dict[str, int] = {}
        self._decisions = decisions
        self._blocked_here: set[str] = set()

    @property
    def anything_blocked(self) -> bool:
        """Whether messages may have to be parked; if not, their entities need not be known."""
        return bool(self.policy.blocked or self._blocked_here or self.policy.given_up)

    @property
    def letters(self) -> Sequence[Letter]:
        """The letters of the batch so far."""
        return self._decisions.letters

    def takes(self, message: StoredMessage, entity: str | None) -> bool:
        """Take a message if it must not be handled: it was given up, or its entity is blocked.

        Returns whether it was taken.
        """
        given_up = self.policy.given_up.get(message.global_position)
        if self._is_blocked(entity):
            self._add(Letter(message, entity, _PARKED))
        elif given_up is not None:
            self._bury(Letter(message, entity, *given_up))
        else:
            return False
        return True

    def fails(self, message: StoredMessage, entity: str | None, error: MessageError) -> None:
        """Make a message a dead letter because of an error, unless that is to be raised."""
        if self.takes(message, entity):
            return
        failure = Failure.of(error, self._detail)
        if self.policy.stop or failure.may_pass:
            error.global_position = message.global_position
            raise error
        self._bury(Letter(message, entity, failure, attempts=1))

    def sets_aside(
        self,
        message: StoredMessage,
        entity: str | None,
        error: MessageError,
        attempts: int = 1,
    ) -> bool:
        """Set a message aside whose handler failed, unless its error is to be raised."""
        failure = Failure.of(error, self._detail)
        if failure.wait is None and self.policy.stop and self.policy.again is None:
            return False
        self._bury(Letter(message, entity, failure, self.policy.tried(message) + attempts))
        if entity is not None:
            self.failed[entity] = message.global_position
        return True

    def was_tried(
        self, message: StoredMessage, entity: str | None, error: MessageError, attempts: int
    ) -> None:
        """Note an attempt that failed, after which the message is tried again directly."""
        if self._detail.exceptions:
            failure = Failure.of(error, self._detail)
            number = self.policy.tried(message) + attempts
            self._decisions.tried.append(Letter(message, entity, failure, number))

    def hold_up(self, heads: Mapping[str, int]) -> None:
        """Note entities that have open letters, each with the global position of the first."""
        self.failed.update(heads)
        self.settle()

    def parks(self, message: StoredMessage, entity: str | None) -> bool:
        """Park a message if an earlier one of its entity failed in this batch, or is a letter."""
        after = None if entity is None else self.failed.get(entity)
        if after is None or message.global_position < after:
            return False
        self._add(Letter(message, entity, _PARKED))
        return True

    def settle(self) -> None:
        """Park those messages that cannot be decoded and come after one whose handler failed.

        All messages of a batch are decoded before a handler is called.
        """
        letters = self._decisions.letters
        for n, letter in enumerate(letters):
            after = None if letter.entity is None else self.failed.get(letter.entity)
            if after is not None and letter.message.global_position > after and not letter.parked:
                letters[n] = Letter(letter.message, letter.entity, _PARKED)
                self._decisions.counts["dead"] -= 1
                self._decisions.counts["parked"] += 1

    def leave_out(self, first: int) -> set[int]:
        """Take back which messages were set aside from a global position on.

        Returns their global positions.
        """
        decisions = self._decisions
        kept, out = list[Letter](), list[Letter]()
        for letter in decisions.letters:
            (out if letter.message.global_position >= first else kept).append(letter)
        decisions.letters = kept
        decisions.counts.subtract(_outcome(letter) for letter in out)
        return {letter.message.global_position for letter in out}

    def _bury(self, letter: Letter) -> None:
        self._add(letter)
        if letter.entity is not None:
            self._blocked_here.add(letter.entity)

    def _is_blocked(self, entity: str | None) -> bool:
        return entity in self.policy.blocked or entity in self._blocked_here

    def _add(self, letter: Letter) -> None:
        self._decisions.letters.append(letter)
        self._decisions.counts[_outcome(letter)] += 1


def _outcome(letter: Letter) -> str:
    """Return as what the message of a letter is counted."""
    return "parked" if letter.parked else "waiting" if letter.waits else "dead"


def blocking(entity_stream: str) -> str:
    """Return the name under which an entity is blocked: its stream's, shortened if it is long."""
    if len(entity_stream) * 4 <= _LONGEST or len(entity_stream.encode()) <= _LONGEST:
        return entity_stream
    return f"{entity_stream[:50]}…{hashlib.sha256(entity_stream.encode()).hexdigest()}"
