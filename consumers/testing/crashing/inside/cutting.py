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
        """Count the exchanges of a connection from now on.

        Args:
            connection: the connection.
            at: the number of the exchange, from 1; None for none.
            instead: called before it takes place.
            each: called before each exchange; None for nothing.
        """
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
