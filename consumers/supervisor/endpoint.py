"""The port at which a supervisor serves metrics and health checks."""

import signal
import socket
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

import structlog

from consumers.runtime.stopping import STOP_SIGNALS
from consumers.supervisor.health import Board
from consumers.supervisor.metrics import Metrics
from consumers.supervisor.store_reader import StoreReader
from reservation.errors import ReservationError

# Seconds that a client may take to send its request.
PATIENCE = 10.0


class PortError(ReservationError):
    """The port to answer at is not available."""


class Endpoint:
    """Answers ``/metrics``, ``/livez`` and ``/readyz``, from threads of its own.

    As a context manager it takes the port on entering, where every error is raised.
    """

    def __init__(self, host: str, port: int, board: Board, store: StoreReader) -> None:
        self._host = host
        self._port = port
        self._board = board
        self._store = store

    def __enter__(self) -> Self:
        try:
            self._server = _listen(self._host, self._port, self._board, self._store)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise PortError(
                f"Cannot answer at {self._host}, port {self._port}: {reason}; name another with "
                f"--metrics-host and --metrics-port"
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="endpoint", daemon=True
        )
        # Signals are for the main thread, whose waits they interrupt. The threads that answer
        # inherit that from the one that starts them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [*STOP_SIGNALS, signal.SIGALRM])
        try:
            self._thread.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        host, port = self._server.server_address[:2]
        structlog.get_logger().info("metrics_served", host=host, port=port)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        family: socket.AddressFamily,
        address: tuple[Any, ...],
        board: Board,
        store: StoreReader,
    ) -> None:
        self.address_family = family
        self.board = board
        self.metrics = Metrics(board, store)
        super().__init__(address, _Answers)

    def server_bind(self) -> None:
        """Take the port, and look up no name for its address, as the base class would."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def handle_error(self, request: object, client_address: object) -> None:
        """Log nothing about a client that has gone."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Answers(BaseHTTPRequestHandler):
    server: _Server
    timeout = PATIENCE
    server_version = "reservation"
    sys_version = ""

    def do_GET(self) -> None:
        match self.path.partition("?")[0]:
            case "/metrics":
                body, content_type = self.server.metrics.exposition(self.headers.get("Accept", ""))
                self._answer(HTTPStatus.OK, body, content_type)
            case "/livez":
                self._report(self.server.board.stuck())
            case "/readyz":
                self._report(self.server.board.not_ready())
            case _:
                self._report(["/metrics, /livez and /readyz are here"], HTTPStatus.NOT_FOUND)

    def _report(
        self, problems: list[str], status: HTTPStatus = HTTPStatus.SERVICE_UNAVAILABLE
    ) -> None:
        """Answer with the problems, a line for each; all is well if there are none."""
        text = "".join(f"{line}\n" for line in problems) or "ok\n"
        self._answer(
            status if problems else HTTPStatus.OK, text.encode(), "text/plain; charset=utf-8"
        )

    def _answer(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log no requests."""


def _listen(host: str, port: int, board: Board, store: StoreReader) -> _Server:
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = addresses[0]
    return _Server(family, address, board, store)
