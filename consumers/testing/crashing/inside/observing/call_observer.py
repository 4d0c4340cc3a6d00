"""An observer of what one call of a handler changes, leaves running and reaches for."""

import asyncio
import threading
import traceback
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from consumers.testing.crashing.inside.observing import outside
from consumers.testing.crashing.inside.observing.fingerprints import fingerprint
from consumers.testing.crashing.inside.observing.outside import Access
from consumers.testing.crashing.inside.observing.sessions import Lock, Sessions
from consumers.testing.crashing.inside.observing.shared_state import changed, shared_state
from consumers.testing.crashing.report import BugKind
from reservation.context import Context

# Seconds that what a handler started may take to end once the handler has returned.
JOIN_SECONDS = 0.1

# What is seen of a call: the kind of bug, and the words for it.
Report = Callable[[BugKind, str], None]


class CallObserver:
    """Observes one call of a handler.

    Attributes:
        report: called for each thing that the handler must not do.
        shared: called with the names of what calls share, and this one changed.
    """

    def __init__(
        self,
        handler: Callable[..., Any],
        arguments: Sequence[Any],
        sessions: Sessions,
        allowed: Sequence[str],
        *,
        changes_entity: bool,
        is_async: bool,
        report: Report,
    ) -> None:
        self.report = report
        self._handler = handler
        self._sessions = sessions
        self._allowed = allowed
        self._is_async = is_async
        self._context: Context = arguments[-1]
        self._threads: list[threading.Thread] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._accesses: list[Access] = []
        given = {"command": arguments[0]}
        if len(arguments) > 2 and not changes_entity:
            given["entity"] = arguments[1]
        self._given = [(name, value, fingerprint(value)) for name, value in given.items()]
        self._shared = shared_state(handler)
        self._committed = sessions.committed()
        self._others = sessions.others()
        self._processes = _processes()
        self._locks: set[Lock] = sessions.locks()
        self._returned: list[tuple[str, object, str]] = []
        self._token = outside.current_report.set(self._accesses_add)
        self._owner = _owner.set(self)
        if not is_async:
            outside.only.append(self._accesses_add)

    def close(self) -> None:
        """Observe no more of what happens in the call."""
        if not self._is_async:
            outside.only.remove(self._accesses_add)
        outside.current_report.reset(self._token)
        _owner.reset(self._owner)

    def started(self, thread: threading.Thread) -> None:
        """Note a thread that the handler started."""
        self._threads.append(thread)

    def created(self, task: "asyncio.Task[Any]") -> None:
        """Note a task that the handler created."""
        self._tasks.append(task)

    def ended(self, returned: object) -> list[str]:
        """Report what the call did; return the names of what calls share, and this one changed."""
        for name, value, before in self._given:
            if fingerprint(value) != before:
                self.report(BugKind.MUTATION, f"changes the {name} that it was given")
        self._report_running()
        self._report_database()
        self._report_outside()
        # An async handler has no part in the consumer's session, which may be in a transaction.
        self._locks = set() if self._is_async else self._sessions.locks() - self._locks
        events = returned if isinstance(returned, list | tuple) else [returned]
        writes = [write.message for write in self._context.writes]
        named = [("event that it returned", event) for event in events if event is not None]
        named += [("message that it wrote", message) for message in writes]
        self._returned = [(name, value, fingerprint(value)) for name, value in named]
        return changed(self._shared, shared_state(self._handler))

    def look_again(self) -> None:
        """Report what was changed after the call: what the handler returned, or had written."""
        for name, value, before in self._returned:
            if fingerprint(value) != before:
                self.report(
                    BugKind.MUTATION, f"changes the {type(value).__name__}, the {name}, afterwards"
                )
                self._returned = []
                return

    def committed(self) -> None:
        """Report a lock that the call took, and that outlasts the transaction."""
        if self._locks & self._sessions.locks():
            self.report(BugKind.LEFT_RUNNING, "leaves an advisory lock of the session held")
        self._locks = set()

    def _accesses_add(self, access: Access) -> None:
        keyed = bool(self._context.given.ids)
        if access.is_network and keyed:
            return  # the key that the handler asked for lets the other side recognize it
        if access.path is not None and any(
            str(id_) in access.path for id_ in self._context.given.ids.values()
        ):
            return  # a file under the key is written again with the same
        if not access.is_allowed(self._allowed):
            self._accesses.append(access)

    def _report_outside(self) -> None:
        told = set()
        for access in self._accesses:
            # A file of the call's own, which is gone when it ends, is no effect.
            made_and_gone = access.path is not None and not Path(access.path).exists()
            removed_own = access.what.startswith("removes") and any(
                other.name == access.name and other.path for other in self._accesses
            )
            if made_and_gone or removed_own or access.what in told:
                continue
            told.add(access.what)
            if access.name == "psycopg.connect":
                self.report(BugKind.OWN_CONNECTION, access.what)
            else:
                self.report(
                    BugKind.OUTSIDE_EFFECT,
                    f"{access.what}, which is not undone if the batch is not "
                    f"committed, and done again with it",
                )

    def _report_database(self) -> None:
        if self._is_async and self._context.gave_connection:
            return  # what it commits is compared after each kill
        now = self._sessions.committed()
        for table in changed(_texts(self._committed), _texts(now)):
            self.report(
                BugKind.OWN_CONNECTION,
                f"commits to the table {table} before its batch commits",
            )
        for pid, state in self._sessions.others().items():
            if pid not in self._others:
                self.report(BugKind.OWN_CONNECTION, f"leaves a session open, which is {state}")

    def _report_running(self) -> None:
        for thread in self._threads:
            thread.join(JOIN_SECONDS)
            if thread.is_alive() and not _is_idle(thread):
                self.report(BugKind.LEFT_RUNNING, f"leaves the thread {thread.name} running")
        for task in self._tasks:
            if not task.done():
                what = getattr(task.get_coro(), "__qualname__", task.get_name())
                self.report(BugKind.LEFT_RUNNING, f"leaves the task {what} running")
        for pid in _processes() - self._processes:
            self.report(BugKind.LEFT_RUNNING, f"leaves the process {_name(pid)} running")


_owner: ContextVar[CallObserver | None] = ContextVar("_owner", default=None)


def note_threads_and_tasks() -> None:
    """Note from now on which call started a thread; tasks are noted once a loop runs."""
    start = threading.Thread.start

    def started(self: threading.Thread) -> None:
        owner = _owner.get()
        if owner is not None:
            owner.started(self)
        start(self)

    threading.Thread.start = started  # type: ignore[method-assign]


def note_tasks() -> None:
    """Note the tasks of the running loop from now on."""
    loop = asyncio.get_running_loop()
    if loop.get_task_factory() is not None:
        return

    # Any: as asyncio declares it.
    def factory(of: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        task = asyncio.Task(coroutine, loop=of, **options)
        owner = _owner.get()
        if owner is not None:
            owner.created(task)
        return task

    loop.set_task_factory(factory)


def _texts(tables: dict[str, tuple[int, str]]) -> dict[str, str]:
    return {name: f"{count} {digest}" for name, (count, digest) in tables.items()}


def _is_idle(thread: threading.Thread) -> bool:
    """Return whether a thread is a worker of an executor that waits for work."""
    import sys

    frame = sys._current_frames().get(thread.ident or 0)
    stack = traceback.extract_stack(frame) if frame is not None else []
    return bool(stack) and (
        stack[-1].name == "_worker" and stack[-1].filename.endswith("futures/thread.py")
    )


def _processes() -> set[int]:
    """Return the ids of the processes that this one has started and that have not ended."""
    found: set[int] = set()
    for file in Path("/proc/self/task").glob("*/children"):
        found.update(map(int, file.read_text().split()))
    return {pid for pid in found if _name(pid) is not None}


def _name(pid: int) -> str | None:
    """Return the name of a process; None if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    return None if rest.split()[0] == "Z" else name
