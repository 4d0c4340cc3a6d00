"""Something that happens in place of the n-th exchange of a connection with the server."""

import os
import signal
from collections.abc import Callable
from typing import Any

from psycopg import Connection


class Cut:
    """Does something in place of the n-th exchange of a connection with the server.

    Attributes:
        exchanges: how many there were.
    """

    def __init__(
        self,
        connection: Connection[Any],
        at: int | None,
        instead: Callable[[], None],
        each: Callable[[], None] | None = None,
    ) -> None:
        self.exchanges = 0
        wait = connection.wait

        def counted(*arguments: Any, **options: Any) -> Any:
            self.exchanges += 1
            if self.exchanges == at:
                instead()
            if each is not None:
                each()
            return wait(*arguments, **options)

        connection.wait = counted  # type: ignore[method-assign]


def die() -> None:
    """End this process at once."""
    os.kill(os.getpid(), signal.SIGKILL)
