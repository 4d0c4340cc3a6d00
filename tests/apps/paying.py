"""Payments whose provider is a folder: it is down while a file is there, and notes each call."""

import asyncio
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from reservation import Breaker, Component, Context

FOLDER = Path(os.environ.get("PAYING", "."))
CAPTURES = "payment:command"
BREAKER = Breaker(
    failures=20, within="1m", open_for=os.environ.get("PAYING_OPEN_FOR", "30s"), on=ConnectionError
)


@dataclass(frozen=True)
class Capture:
    payment_id: str
    number: int


@dataclass(frozen=True)
class Captured:
    payment_id: str
    number: int


class ProviderDownError(ConnectionError):
    """The provider does not answer."""


def ask(command: Capture) -> None:
    """Ask the provider, which notes the call with its time."""
    with (FOLDER / "calls").open("a") as calls:
        calls.write(f"{time.time()} {command.payment_id} {command.number} {os.getpid()}\n")
    if (FOLDER / "deadly").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    if (FOLDER / "down").exists():
        raise ProviderDownError


def calls(folder: Path) -> list[tuple[float, str, int]]:
    """Return the calls that the provider has noted, in their order."""
    noted = folder / "calls"
    lines = noted.read_text().splitlines() if noted.exists() else []
    return [(float(at), name, int(number)) for at, name, number, _ in map(str.split, lines)]


payments = Component("payment", id="payment_id")
payments.message(Captured)


@payments.handle(Capture, once=None, breaker=BREAKER)
def capture(command: Capture, entity: None, context: Context) -> Captured:
    ask(command)
    return context.follow(command, Captured)


awaited = Component("payment", id="payment_id")
awaited.message(Captured)


@awaited.handle(Capture, once=None, breaker=BREAKER, concurrency=20)
async def capture_later(command: Capture, entity: None, context: Context) -> Captured:
    await asyncio.sleep(0.005)
    ask(command)
    return context.follow(command, Captured)
