"""Components whose handlers are awaited, made from those whose handlers are not."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

from reservation import Component
from reservation.declaration.table import declarations


def awaiting(component: Component, concurrency: int = 3) -> Component:
    """Let the handlers of a component be awaited, each after a short while, and return it."""
    own = declarations(component).own
    for name, one in own.handled.items():
        if name == one.names[0]:
            own.declare(one.message, handler=awaited(one.handler), concurrency=concurrency)
    return component


def awaited(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Return an async handler that does what another one does, somewhat later."""

    async def later(*arguments: Any) -> Any:
        await asyncio.sleep(random.choice([0, 0, 0.001]))
        return handler(*arguments)

    return later
