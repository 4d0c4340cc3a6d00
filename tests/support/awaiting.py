"""Components whose handlers are awaited, made from those whose handlers are not."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from consumers.runtime import event_loop
from reservation import Component
from reservation.declaration.table import declarations


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no batch wait for its async calls."""
    monkeypatch.setattr(event_loop, "PATIENCE", 0.0)


Handler = Callable[..., Any]


def awaiting(
    component: Component, concurrency: int = 3, later: Callable[[Handler], Handler] | None = None
) -> Component:
    """Let the handlers of a component be awaited, each after a short while, and return it."""
    own = declarations(component).own
    for name, one in own.handled.items():
        if name == one.names[0]:
            handler = (later or awaited)(one.handler)
            own.declare(one.message, handler=handler, concurrency=concurrency)
    return component


def awaited(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Return an async handler that does what another one does, somewhat later."""

    async def later(*arguments: Any) -> Any:
        await asyncio.sleep(random.choice([0, 0, 0.001]))
        return handler(*arguments)

    return later


def outlasting(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Return an async handler that outlasts a batch that does not wait, always by as much."""

    async def later(*arguments: Any) -> Any:
        for _ in range(50):  # a batch that does not wait ends after a few steps of the loop
            await asyncio.sleep(0)
        return handler(*arguments)

    return later
