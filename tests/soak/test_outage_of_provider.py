"""An outage of a provider: refunds wait for its end, and delay nothing else."""

import json
import statistics
import time
from pathlib import Path

import pytest

from tests.support.started import PATIENCE, Started

_APP = """
import asyncio
from dataclasses import dataclass
from pathlib import Path

from reservation import Component, Retry

payments = Component("payments", id="payment_id")
folder = Path(__file__).parent
policy = Retry(attempts=100, first={first!r}, most={most!r}, on=ConnectionError)


@dataclass(frozen=True)
class Refund:
    payment_id: str


@dataclass(frozen=True)
class Refunded:
    payment_id: str


@dataclass(frozen=True)
class Capture:
    payment_id: str


@dataclass(frozen=True)
class Captured:
    payment_id: str


def ask():
    if (folder / "down").exists():
        raise ConnectionError("the provider is down")


@payments.handle(Capture, once=None)
def capture(command, entity, context):
    return context.follow(command, Captured)


payments.message(Refunded, Captured)
"""

_PLAIN = """

@payments.handle(Refund, once=None, retry=policy)
def refund(command, entity, context):
    ask()
    return context.follow(command, Refunded)
"""

_ASYNC = """

@payments.handle(Refund, once=None, retry=policy, concurrency=50)
async def refund(command, entity, context):
    await asyncio.sleep(0.005)
    ask()
    return context.follow(command, Refunded)
"""


def app(folder: Path, refund: str, first: str, most: str) -> Path:
    (folder / "outage.py").write_text(_APP.format(first=first, most=most) + refund)
    (folder / "down").touch()
    return folder


def send(connection, type_: str, number: str) -> None:
    connection.execute(
        "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, %s, %s)",
        [f"payments:command-{number}", type_, json.dumps({"paymentId": number})],
    )


def latency(connection, number: str) -> float:
    """Return the seconds from a capture's command to its event."""
    deadline = time.monotonic() + PATIENCE
    while True:
        found = connection.execute(
            "SELECT extract(epoch FROM e.time - c.time) FROM message_store.messages c, "
            "message_store.messages e WHERE c.stream_name = %s AND e.stream_name = %s",
            [f"payments:command-{number}", f"payments-{number}"],
        ).fetchone()
        if found is not None:
            return float(found[0])
        assert time.monotonic() < deadline
        time.sleep(0.01)


def outage(
    connection, database_url, folder: Path, *, refunds: int, seconds: float, kills: int
) -> list[float]:
    """Let refunds meet an outage; return how long captures took, once all refunds are made.

    Each capture is waited for while the provider is down, so none waits for the end of that.
    """
    for n in range(refunds):
        send(connection, "Refund", f"r{n}")
    captures: list[float] = []
    arguments = ["--only", "commands", "--log-level", "error"]
    began = time.monotonic()
    for life in range(kills + 1):
        with Started(database_url, *arguments, app="outage:payments", cwd=folder) as started:
            before = len(captures)
            ends = began + seconds * (life + 1) / (kills + 1)
            while len(captures) == before or time.monotonic() < ends:
                number = f"c{len(captures)}"
                send(connection, "Capture", number)
                captures.append(latency(connection, number))
                time.sleep(0.05)
            if life == kills:
                (folder / "down").unlink()
                wait_for_all(connection, began + seconds, refunds + len(captures))
            started.process.kill()
    return captures


def wait_for_all(connection, until: float, commands: int) -> None:
    """Wait until each command has had its effect, and make sure that each had it once."""
    while (found := effects(connection)) != (commands, commands, 0):
        assert time.monotonic() < until + 2 * PATIENCE, found
        time.sleep(0.1)
    rows = connection.execute(
        "SELECT state, count(*) FROM reservation.dead_letters GROUP BY 1"
    ).fetchall()
    assert [state for state, _ in rows] == ["handled"]


def effects(connection) -> tuple[int, int, int]:
    """Return how many events there are, of how many entities, and how many letters are open."""
    return connection.execute(
        "SELECT count(*), count(DISTINCT stream_name), ("
        "  SELECT count(*) FROM reservation.dead_letters WHERE state <> 'handled') "
        "FROM message_store.messages WHERE type IN ('Refunded', 'Captured')"
    ).fetchone()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("size", "waits"),
    [
        ({"refunds": 200, "seconds": 8, "kills": 1}, ("100ms", "1s")),
        ({"refunds": 1000, "seconds": 60, "kills": 3}, ("200ms", "6s")),
        ({"refunds": 1000, "seconds": 1200, "kills": 5}, ("1s", "2m")),
    ],
    ids=["seconds", "a minute", "twenty minutes"],
)
@pytest.mark.parametrize("refund", [_PLAIN, _ASYNC], ids=["plain", "async"])
def test_an_outage_delays_nothing_else_and_loses_nothing(
    connection, database_url, tmp_path, record_property, refund, size, waits
):
    """Refunds wait for the end of an outage, over the deaths of processes."""
    captures = outage(connection, database_url, app(tmp_path, refund, *waits), **size)
    record_property("median seconds of a capture", statistics.median(captures))
