"""Several things that Spark does at the same time.

Much of what a job takes is spent on planning it, in one thread, while the cores that could work are
idle. Jobs that do not wait for each other fill these gaps.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")


def run_concurrently(work: Sequence[Callable[[], T]]) -> list[T]:
    """Do several things at the same time; return what each gives.

    If one fails, the others come to their ends before that is told. Only who is told to stop does
    not wait for them; they end with the session.
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
