"""What Spark is doing, on a terminal while it does it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from pyspark.sql import SparkSession
from rich.console import Console
from rich.status import Status

from spark_jobs.common.concurrency import in_background
from spark_jobs.session.activity import Activity, Tasks

_SECONDS = 0.3

Watch = Callable[[SparkSession], AbstractContextManager[None]]


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
