"""A consumer that runs in a thread of the test's own process, and waiting for what it does."""

import contextlib
import threading
import time

from consumers.loop.consumer import Consumer
from consumers.runtime.stopping import Stop
from tests.bank import session
from tests.processes import PATIENCE


@contextlib.contextmanager
def running(component, database_url, category, stop=None, **options):
    """Run the consumer of a category in a thread, while the block lasts."""
    stop = stop or Stop(takes_signals=False)
    with session(database_url) as opened:
        consumer = Consumer(opened, component, category, **options)
        thread = threading.Thread(target=consumer.run, args=[stop])
        thread.start()
        try:
            yield thread, stop
        finally:
            stop.request()
            thread.join(PATIENCE)


def until(check, thread=None):
    """Look until something is so, and return it."""
    deadline = time.monotonic() + PATIENCE
    while not (answer := check()):
        assert thread is None or thread.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return answer
