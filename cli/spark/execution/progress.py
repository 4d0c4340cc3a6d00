"""Spark's progress, in numbers of its tasks, and on a terminal while it works."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession
from rich.console import Console
from rich.status import Status

from spark_jobs.common.concurrency import in_background
from spark_jobs.reconcile import Watch

_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class Tasks:
    """The tasks of the running stages.

    Attributes:
        done: how many have finished.
        running: how many are running.
        known: how many there are.
    """

    done: int
    running: int
    known: int


class Activity:
    """A session's activity, as Spark itself tracks it."""

    def __init__(self, session: SparkSession) -> None:
        context = getattr(session, "sparkContext", None)
        self._tracker = None if context is None else context.statusTracker()
        self._last = Tasks(0, 0, 0)
        if self._tracker is None:  # a Connect server reports by itself
            # The type of a handler is part of the client of Connect, which may not be installed.
            session.registerProgressHandler(self._note)  # type: ignore[arg-type]

    def now(self) -> Tasks:
        """Return how far the running stages are."""
        if self._tracker is None:
            return self._last
        stages = [
            self._tracker.getStageInfo(stage_id) for stage_id in self._tracker.getActiveStageIds()
        ]
        known = [stage for stage in stages if stage is not None]
        return Tasks(
            done=sum(stage.numCompletedTasks for stage in known),
            running=sum(stage.numActiveTasks for stage in known),
            known=sum(stage.numTasks for stage in known),
        )

    # Any: stages of a type that only the client of Connect has
    def _note(self, stages: Any, inflight_tasks: int, **_: Any) -> None:
        running = [stage for stage in stages or () if not stage.done]
        self._last = Tasks(
            done=sum(stage.num_completed_tasks for stage in running),
            running=inflight_tasks,
            known=sum(stage.num_tasks for stage in running),
        )


@contextmanager
def progress(console: Console) -> Iterator[Watch]:
    """Show a line with what Spark is doing, if the console is a terminal."""
    if not console.is_terminal:
        yield lambda _: nullcontext()
        return
    with console.status("Starting Spark…") as status:
        yield lambda session: _followed(status, Activity(session))


def _followed(status: Status, source: Activity) -> AbstractContextManager[None]:
    def follow(is_over: threading.Event) -> None:
        while not is_over.wait(_SECONDS):
            status.update(_said(source.now()))

    return in_background(follow)


def _said(tasks: Tasks) -> str:
    if not tasks.known:
        return "Spark is planning…"
    return f"Spark is working: {tasks.done} of {tasks.known} tasks done, {tasks.running} running"
