"""How soon after the commit of its event a sender that waits has the outcome of its command."""

import statistics
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

from psycopg import Connection

from bank import account
from bank.messages import Close, Closed
from benchmarks.harness import Bench, Result, benchmark
from benchmarks.workload import TIME
from reservation import MessageStore
from reservation.messages.message import followed_id
from reservation.postgres.connection import connect
from reservation.store.notifications import set_notices

ROUNDS = 300
MOST = 5.0  # milliseconds, as the median

# Whether the one that waits has asked for notices, and does nothing else any more.
WAITS = """
SELECT count(*) = 1 FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'reservation-wait'
  AND state = 'idle' AND query LIKE '%%expect_notice(%%'
"""


@benchmark
def answer_wait_for(bench: Bench) -> Iterator[Result]:
    """Wait for the outcome of one command after another, with notices."""
    with (
        bench.database() as url,
        connect(url, autocommit=True) as looking,
        connect(url) as handling,
        MessageStore.open(url) as sender,
    ):
        set_notices(looking, True)
        delays = [_delay(sender, handling, looking, f"{n}") for n in range(ROUNDS)]
    points = statistics.quantiles(delays, n=100)
    median, last = (round(points[at - 1] * 1000, 2) for at in (50, 99))
    against = f"{MOST} ms after the commit; p99 is {last} ms"
    ratio = round(median / MOST, 2)
    yield Result("answer_wait_for, p50", median, "ms", against, ratio, 1.0, median <= MOST)


def _delay(
    sender: MessageStore, handling: Connection[Any], looking: Connection[Any], id_: str
) -> float:
    """Return the seconds from the commit of a command's event to the answer."""
    command, message_id = Close(id_, TIME), uuid.uuid4()
    stream = account.entity_stream(command)
    sender.write(command, f"account:command-{id_}", id=message_id)
    answered: list[float] = []

    def wait() -> None:
        outcome = sender.wait_for(command, account, timeout=60)
        answered.append(time.perf_counter())
        assert outcome.state == "handled"

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not looking.execute(WAITS.encode()).fetchall()[0][0]:
        time.sleep(0.001)
    stored = sender.last_message(f"account:command-{id_}")
    assert stored is not None
    event_id = followed_id(str(message_id), stream, 0)
    event = Closed(id_, TIME, TIME)
    MessageStore(handling).write(event, stream, id=event_id, metadata=stored.follow_metadata())
    handling.commit()
    committed = time.perf_counter()
    waiting.join()
    return answered[0] - committed
