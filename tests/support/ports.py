"""Ports for servers of the tests."""

import contextlib
import itertools
import os
import socket

# A thousand for each process that runs tests, below those that the system gives to clients. None is
# given twice, since whoever asked for one may not listen yet.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_PORTS = itertools.count(20_000 + 1_000 * _WORKER)


def free_port() -> int:
    """Return a port that nobody listens on, and that was not returned before."""
    return next(port for port in _PORTS if _is_free(port))


def _is_free(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
        return True
    return False
