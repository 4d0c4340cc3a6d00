"""How often a client may give a wrong token."""

import time
from collections.abc import Callable

# Wrong tokens that one client may give in so many seconds.
MOST = 5
WINDOW = 60.0

# Clients that are remembered; the oldest are forgotten first.
_CLIENTS = 10_000


class Attempts:
    """Counts wrong tokens by the address of the client."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start with no attempts.

        Args:
            clock: returns a time in seconds.
        """
        self._clock = clock
        self._failed: dict[str, list[float]] = {}

    def wait(self, client: str) -> float:
        """Return the seconds until a client may try again; 0 if it may now."""
        recent = self._recent(client)
        return recent[0] + WINDOW - self._clock() if len(recent) >= MOST else 0.0

    def failed(self, client: str) -> None:
        """Note a wrong token."""
        recent = [*self._recent(client), self._clock()]
        self._failed.pop(client, None)
        self._failed[client] = recent
        if len(self._failed) > _CLIENTS:
            del self._failed[next(iter(self._failed))]

    def succeeded(self, client: str) -> None:
        """Forget the wrong tokens of a client."""
        self._failed.pop(client, None)

    def _recent(self, client: str) -> list[float]:
        now = self._clock()
        return [at for at in self._failed.get(client, ()) if now - at < WINDOW]
