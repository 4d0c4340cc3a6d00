"""The async calls of one consumer that go on when the batch in which they began has ended.

The effects of such a call are committed after its end. Until then its message is a letter, which
the process that makes the call leaves alone (`consumers.failures.letters`). A call is kept until
the outcome of its message is committed, so an attempt that was rolled back does not repeat it.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from consumers.runtime.event_loop import EventLoop
from consumers.runtime.observability.spans import MessageSpan
from reservation.errors import MessageError

# With so many letters that wait for calls, a process reads no further until some are handled.
MOST_WAITING = 1000


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of a call: events, or the error with which it failed."""

    outcome: str
    events: Sequence[object] = ()
    error: MessageError | None = None
    span: MessageSpan | None = None


# Any: the context of the handler.
@dataclass(slots=True, eq=False)
class AsyncCall:
    """One call of an async handler.

    Attributes:
        stream_name: the stream of its message.
        entity: behind which later messages of its entity are parked.
        inputs: what the handler saw; if that has changed, its outcome is not used.
        ordering_keys: what its message shares with others that must be handled after it.
        context: the handler's context.
        task: the task that returns its outcome.
        is_letter: whether its message was committed as a letter.
        is_cancelled: whether it was cancelled, and has no outcome.
        is_forgotten: whether it was forgotten, because the outcome of its message is committed, or
            another process handles its message.
    """

    stream_name: str
    entity: str | None
    inputs: object
    ordering_keys: frozenset[Hashable]
    context: Any
    task: "asyncio.Task[CallResult | None]"
    is_letter: bool = False
    is_cancelled: bool = False
    is_forgotten: bool = False

    def is_running(self) -> bool:
        """Return whether it has not ended."""
        return not self.task.done()

    def blocks(self) -> bool:
        """Return whether messages that may repeat its own wait for it: until it is forgotten."""
        return not self.is_forgotten


class RunningCalls:
    """The calls of one consumer, by the global positions of their messages.

    Attributes:
        loop: where they run.
        patient: whether each transaction waits for all of its calls.
        closed: whether no further call is begun, because it is time to stop.
        freed: called when a place is free again.
        is_cut: returns whether the message before which the last batch was cut off still waits;
            None if no message cut it off.
    """

    def __init__(self, loop: EventLoop | None = None) -> None:
        self.loop = loop or EventLoop()
        self.patient = False
        self.closed = False
        self.freed: Callable[[], None] | None = None
        self.is_cut: Callable[[], bool] | None = None
        self._calls: dict[int, AsyncCall] = {}
        self._taken: Counter[Hashable] = Counter()
        self._limits: dict[Hashable, int] = {}
        self._postponed: dict[int, Callable[[], bool]] = {}  # letters
        self._parked: set[int] = set()

    def __bool__(self) -> bool:
        """Whether any call goes on."""
        return any(call.is_running() for call in self._calls.values())

    @property
    def letters(self) -> int:
        """The number of letters whose calls go on, or whose outcomes are not committed."""
        return sum(call.is_letter for call in self._calls.values())

    @property
    def must_pause(self) -> bool:
        """Whether to read no further until calls have ended."""
        if self.is_cut is not None and self.is_cut():
            return True
        return self.letters + len(self._postponed) + len(self._parked) >= MOST_WAITING and bool(
            self
        )

    def excluded(self) -> list[int]:
        """Return which letters are not due, although they are in the store."""
        running = [position for position, call in self._calls.items() if call.is_running()]
        return running + [position for position, waits in self._postponed.items() if waits()]

    def ended_letters(self) -> set[int]:
        """Return which letters have calls that have ended."""
        calls = self._calls.items()
        return {position for position, one in calls if one.is_letter and not one.is_running()}

    def due(self) -> set[int]:
        """Return which letters waited for calls, and do so no longer."""
        postponed = self._postponed.items()
        return self.ended_letters() | {position for position, waits in postponed if not waits()}

    def ended(self, position: int) -> AsyncCall | None:
        """Return the call for a message, if there was one and it has ended."""
        call = self._calls.get(position)
        return None if call is None or call.is_running() else call

    def blocking_call(
        self, ordering_keys: Collection[Hashable], handled: Collection[int]
    ) -> AsyncCall | None:
        """Return the call for a letter that other messages with an ordering key wait for.

        It may have ended, unless its message is among those that are handled at the moment.
        """
        for position, call in self._calls.items() if ordering_keys else ():
            waits = call.is_running() or position not in handled
            if call.is_letter and waits and not call.ordering_keys.isdisjoint(ordering_keys):
                return call
        return None

    @property
    def entities(self) -> set[str | None]:
        """The entities of letters whose calls go on, or whose outcomes are not committed."""
        return {call.entity for call in self._calls.values() if call.is_letter}

    def limit(self, kind: Hashable, most: int) -> None:
        """Note how many calls of a kind may go on at a time."""
        self._limits[kind] = most

    def has_place(self, kind: Hashable) -> bool:
        """Return whether another call of a kind may begin."""
        return self._taken[kind] < self._limits[kind]

    def take_place(self, kind: Hashable) -> bool:
        """Take the place of a call that is about to begin; return whether there was one."""
        taken = self._taken[kind]
        if taken >= self._limits[kind]:
            return False
        self._taken[kind] = taken + 1
        return True

    def give_place(self, kind: Hashable) -> None:
        """Give a place back."""
        self._taken[kind] -= 1
        if self.freed is not None:
            self.freed()

    def add(self, position: int, call: AsyncCall) -> None:
        """Note a call that goes on at the end of its batch."""
        self._calls[position] = call

    def keep(
        self,
        positions: Iterable[int],
        postponed: Mapping[int, Callable[[], bool]],
        parked: Iterable[int],
    ) -> None:
        """Note a commit: which messages have calls that go on, and which wait for such calls."""
        for position in positions:
            self._calls[position].is_letter = True
            self._postponed.pop(position, None)
            self._parked.discard(position)
        self._postponed.update(postponed)
        self._parked -= postponed.keys()
        self._parked.update(parked)

    def drop(self, positions: Iterable[int]) -> None:
        """Forget the calls for messages, because what became of these is committed."""
        dropped = [self._forget(position) for position in positions]
        self.loop.cancel([task for task in dropped if task is not None])

    def roll_back(self) -> None:
        """Forget the calls that saw what was not committed."""
        self.drop([position for position, call in self._calls.items() if not call.is_letter])

    def forget(self) -> None:
        """Cancel and forget everything: another process may handle the messages."""
        self.drop([*self._calls, *self._postponed, *self._parked])

    def streams(self) -> dict[int, str]:
        """Return the streams of the messages that have calls, by their global positions."""
        return {position: call.stream_name for position, call in self._calls.items()}

    def _forget(self, position: int) -> "asyncio.Task[CallResult | None] | None":
        """Forget a message; return its call if that goes on."""
        self._postponed.pop(position, None)
        self._parked.discard(position)
        call = self._calls.pop(position, None)
        if call is None:
            return None
        call.is_forgotten = True
        if not call.is_running():
            return None
        call.is_cancelled = True
        return call.task
