"""Gathering: writes that several tasks await at the same time are sent in one statement.

While a statement for a category is on its way, further writes to that category wait, and the next
statement takes them. So there is no timer, and a write that is alone is sent at once. Each category
has a line of its own, because the lock of a category is what a write may have to wait for.
(Source: group commit, in DeWitt et al., *Implementation Techniques for Main Memory Database
Systems*, 1984.)
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import Context

from reservation.errors import CommitUnknownError, DatabaseUnavailableError
from reservation.messages.stream_name import category
from reservation.store.statements import Statement
from reservation.store.writing.batch import WriteBatch, size_of
from reservation.store.writing.position import WrittenPosition
from reservation.store.writing.write import Row

# What one statement takes at most. A single write that is longer is sent alone.
MOST_WRITES = 500
MOST_BYTES = 1_000_000

# The position of each message in its stream, None for one that is refused.
WrittenPositions = Sequence[WrittenPosition | None]
# Makes the statement when there is a connection for it, so that it takes what waits then.
Send = Callable[[Callable[[], Statement[WrittenPositions]]], Awaitable[WrittenPositions]]
_Answer = asyncio.Future[WrittenPosition | None]


class Gathering:
    """Sends the writes of many tasks in few statements."""

    def __init__(self, send: Send) -> None:
        self._send = send
        # A task can only be woken by its own event loop.
        self._lines: dict[tuple[asyncio.AbstractEventLoop, str], _Line] = {}

    async def write(self, row: Row) -> WrittenPosition | None:
        """Write a message, together with those of other tasks to its category.

        If the caller is cancelled before the message is sent, it is not written. Later it may be
        written all the same; its statement is canceled once no task waits for it any more.
        """
        key = (asyncio.get_running_loop(), category(row.stream_name))
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line(self._send, lambda: self._lines.pop(key))
        return await line.write(row)


class _Line:
    """The writes to one category that wait, and the statement that is on its way."""

    def __init__(self, send: Send, end: Callable[[], object]) -> None:
        self._send = send
        self._end = end
        self._waiting: dict[_Answer, Row] = {}
        self._current: _Gathered | None = None
        self._tasks: set[asyncio.Task[None]] = set()  # those that are canceled may take a while

    async def write(self, row: Row) -> WrittenPosition | None:
        answer: _Answer = asyncio.get_running_loop().create_future()
        self._waiting[answer] = row
        if self._current is None:
            self._start()
        try:
            return await answer
        except asyncio.CancelledError:
            self._waiting.pop(answer, None)
            if self._current is not None and not self._current.is_awaited():
                self._current.cancel()
                self._go_on()
            raise

    def _start(self) -> None:
        self._current = gathered = _Gathered(self._waiting)
        # In an empty context: it is part of no single sender's trace.
        task = asyncio.create_task(self._run(gathered), name="gathered writes", context=Context())
        gathered.task = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, gathered: "_Gathered") -> None:
        first = list(self._waiting)
        try:
            gathered.answer(await self._send(gathered.take))
        except Exception as error:  # noqa: BLE001  whatever it is, each sender gets it
            gathered.fail(error, first)
        except asyncio.CancelledError:  # by the end of the event loop, or nobody waits any more
            gathered.fail(
                CommitUnknownError(
                    "The statement was cancelled before it was known whether the write was "
                    "committed. Write again with the same ids; what is stored already is not "
                    "written twice"
                )
            )
            raise
        finally:
            if self._current is gathered:
                self._go_on()

    def _go_on(self) -> None:
        self._current = None
        if all(answer.done() for answer in self._waiting):
            self._end()
        else:
            self._start()


class _Gathered:
    """The writes of one statement.

    Attributes:
        task: the task that sends it.
    """

    task: asyncio.Task[None]

    def __init__(self, waiting: dict[_Answer, Row]) -> None:
        self._waiting = waiting
        self._sent: dict[_Answer, Row] = {}

    def is_awaited(self) -> bool:
        """Return whether a task waits for the statement."""
        if not self._sent:
            return bool(self._waiting)
        return not all(answer.done() for answer in self._sent)

    def cancel(self) -> None:
        """Cancel the statement, unless it is being canceled; twice would stop the request."""
        if not self.task.cancelling():
            self.task.cancel()

    def take(self) -> Statement[WrittenPositions]:
        """Return the statement for the first of those that wait, as many as it may hold."""
        size = 0
        for answer, row in self._waiting.items():
            if answer.done():
                continue
            size += size_of(row)
            if self._sent and (size > MOST_BYTES or len(self._sent) == MOST_WRITES):
                break
            self._sent[answer] = row
        if not self._sent:
            raise asyncio.CancelledError
        self._remove(self._sent)
        batch = WriteBatch.encoded(list(self._sent.values()))
        return batch.statement() if len(self._sent) == 1 else batch.statement_of_each()

    def answer(self, positions: WrittenPositions) -> None:
        """Give each write its position."""
        for answer, position in zip(self._sent, positions, strict=True):
            if not answer.done():
                answer.set_result(position)

    def fail(self, error: Exception, first: Iterable[_Answer] = ()) -> None:
        """Give each write what an error means for it."""
        failed = self._sent or self._remove(first)
        for answer, row in failed.items():
            if answer.done():
                continue
            if isinstance(error, DatabaseUnavailableError):
                answer.set_exception(_of_one(error, row))
            elif len(self._sent) == 1:
                answer.set_exception(error)
            else:
                answer.set_result(None)

    def _remove(self, answers: Iterable[_Answer]) -> dict[_Answer, Row]:
        """Let writes wait no longer; return those that still did."""
        removed = [(answer, self._waiting.pop(answer, None)) for answer in answers]
        return {answer: row for answer, row in removed if row is not None}


def _of_one(error: DatabaseUnavailableError, row: Row) -> DatabaseUnavailableError:
    """Return the error of a statement as that of one of its messages."""
    if isinstance(error, CommitUnknownError):
        own: DatabaseUnavailableError = CommitUnknownError(str(error), [row.id])
    else:
        own = DatabaseUnavailableError(str(error))
    own.__cause__ = error.__cause__
    return own
