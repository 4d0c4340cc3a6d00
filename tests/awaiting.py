"""Components whose handlers are awaited, made from those whose handlers are not."""

import asyncio
import dataclasses
import random
from collections.abc import Callable
from typing import Any

from reservation import Component


def awaiting(component: Component, concurrency: int = 3) -> Component:
    """Let the handlers of a component be awaited, each after a short while, and return it.

    Those of a two-phase strategy stay as they are.
    """
    for name, handler in component.handlers.items():
        if name not in component.two_phase:
            component.handlers[name] = awaited(handler)
            component.concurrency[name] = concurrency
    for name, initiation in component.initiations.items():
        handler = awaited(initiation.handler)
        component.initiations[name] = dataclasses.replace(initiation, handler=handler)
        component.concurrency[name] = concurrency
    return component


def awaited(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Return an async handler that does what another one does, somewhat later."""

    async def later(*arguments: Any) -> Any:
        await asyncio.sleep(random.choice([0, 0, 0.001]))
        return handler(*arguments)

    return later
