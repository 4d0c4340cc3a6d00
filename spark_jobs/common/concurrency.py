"""Several jobs of Spark at the same time.

A job spends much of its time on planning, in one thread, while other cores are idle. Jobs that do
not depend on each other fill these gaps.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


def run_concurrently(work: Sequence[Callable[[], T]]) -> list[T]:
    """Run several functions at the same time; return the result of each.

    If one fails, its error is raised once the others have ended. An interruption of the process
    does not wait for them; they end with the session.
    """
    executor = ThreadPoolExecutor(len(work), "reservation")
    try:
        futures = [executor.submit(task) for task in work]
        wait(futures)
    except BaseException:
        executor.shutdown(wait=False, cancel_futures=True)
        raise
    executor.shutdown()
    return [future.result() for future in futures]


@contextmanager
def in_background(watch: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run a function in a thread of its own until the block ends."""
    is_over = threading.Event()
    watcher = threading.Thread(target=watch, args=[is_over], daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()
