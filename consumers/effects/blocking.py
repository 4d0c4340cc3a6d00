"""A batch's messages to handle, those to set aside, and those that wait behind these.

A message that cannot be handled is set aside, and later messages of its entity are parked behind
it, so that every entity sees its messages in order. Other entities go on. (The idea is that of
Axon's sequenced dead-letter queue.)
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from consumers.effects.effects import Effects
from consumers.failures.failure import Failure, Reason, Unhandled
from consumers.failures.retries import Retries
from reservation.errors import MessageError
from reservation.messages.message import StoredMessage

# Bytes of an entity's name that an index is sure to take beside a consumer's and a category's.
_LONGEST = 1000

_PARKED = Failure(Reason.PARKED)
_RUNNING = Failure(Reason.RUNNING, wait=0.0)


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """A batch's policy for messages that cannot be handled.

    Attributes:
        blocked: the entities whose messages are parked; only read.
        failed: by global position, the messages whose failure is known, which are not tried.
        stop: whether to raise the error instead.
        tried: by global position, how often messages that are tried again were tried before; None
            where the messages are read from the category.
        limited: the global positions of messages that have waited for a rate.
        looks: whether to look for open letters of the messages' entities in the store, because
            some may be in partitions of others.
    """

    blocked: set[str] = field(default_factory=set)
    failed: Mapping[int, Failure] = field(default_factory=dict)
    stop: bool = False
    tried: Mapping[int, int] | None = None
    limited: Collection[int] = ()
    looks: bool = False

    @property
    def sets_aside(self) -> bool:
        """Whether messages are set aside already, so that it matters what becomes of others."""
        return bool(self.blocked or self.failed)


# For a batch that must succeed as a whole: every error is raised.
ALL_OR_NOTHING = FailurePolicy(stop=True)


class Blocking:
    """The messages of one batch that are set aside, while it is decided on.

    Attributes:
        policy: what applies.
        heads: the entities of which a message of this batch failed, or that have an open letter in
            the store, each with the global position of that message. Later ones are parked.
    """

    def __init__(self, policy: FailurePolicy, effects: Effects, retries: Retries) -> None:
        self.policy = policy
        self.heads: dict[str, int] = {}
        self._retries = retries
        self._effects = effects

    @property
    def letters(self) -> Sequence[Unhandled]:
        """What was set aside so far."""
        return self._effects.letters

    def sets_aside(self, message: StoredMessage, entity: str | None) -> bool:
        """Set a message aside that is not to be tried; return whether it is not."""
        if self.parks(message, entity):
            return True
        failure = self.policy.failed.get(message.global_position)
        if failure is None:
            return False
        self._set_aside(message, entity, failure)
        return True

    def fails(self, message: StoredMessage, entity: str | None, error: MessageError) -> None:
        """Set a message aside that failed, unless its error is to be raised."""
        if self.sets_aside(message, entity):
            return
        if self.policy.stop:
            error.global_position = message.global_position
            raise error
        self._set_aside(
            message, entity, self._retries.failure(message.type, error, self._tried(message))
        )

    def waits(self, message: StoredMessage, entity: str | None, failure: Failure) -> None:
        """Set a message aside whose handler may not be called yet, which takes no attempt."""
        self._set_aside(message, entity, replace(failure, attempts=self._tried(message)))

    def runs(self, message: StoredMessage, entity: str | None) -> None:
        """Set a message aside whose async call goes on, or a letter that stays as it is."""
        self._set_aside(message, entity, _RUNNING)

    def parks(self, message: StoredMessage, entity: str | None) -> bool:
        """Park a message if an earlier one of its entity is set aside; return whether one is."""
        if entity is None:
            return False
        head = 0 if entity in self.policy.blocked else self.heads.get(entity)
        if head is None or message.global_position < head:
            return False
        self._add(Unhandled(message, entity, _PARKED))
        return True

    def settle(self, heads: Mapping[str, int] | None = None) -> None:
        """Park those that failed behind others, or behind the open letters that are given.

        All messages are decoded before one is handled.
        """
        self.heads.update(heads or {})
        letters = self._effects.letters
        for n, letter in enumerate(letters):
            head = None if letter.entity is None else self.heads.get(letter.entity)
            if head is None or letter.message.global_position <= head or letter.state == "parked":
                continue
            letters[n] = Unhandled(letter.message, letter.entity, _PARKED)
            self._effects.counts[letter.state] -= not letter.runs
            self._effects.counts["parked"] += 1

    def leave_out(self, first: int) -> set[int]:
        """Undo setting messages aside from a global position on; return their positions."""
        effects = self._effects
        out = [one for one in effects.letters if one.message.global_position >= first]
        effects.letters = [one for one in effects.letters if one.message.global_position < first]
        effects.counts.subtract(one.state for one in out if not one.runs)
        return {one.message.global_position for one in out}

    def _tried(self, message: StoredMessage) -> int:
        tried = self.policy.tried
        return 0 if tried is None else tried[message.global_position]

    def _set_aside(self, message: StoredMessage, entity: str | None, failure: Failure) -> None:
        self._add(Unhandled(message, entity, failure))
        if entity is not None:
            position = message.global_position
            self.heads[entity] = min(position, self.heads.get(entity, position))

    def _add(self, letter: Unhandled) -> None:
        self._effects.letters.append(letter)
        self._effects.counts[letter.state] += not letter.runs


def blocking(entity_stream: str) -> str:
    """Return the name under which an entity is blocked: its stream's, shortened if it is long."""
    if len(entity_stream) * 4 <= _LONGEST or len(entity_stream.encode()) <= _LONGEST:
        return entity_stream
    return f"{entity_stream[:50]}…{hashlib.sha256(entity_stream.encode()).hexdigest()}"
