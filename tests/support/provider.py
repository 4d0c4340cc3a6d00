"""A payment provider behind HTTP that recognizes keys, and is slow, fails, and goes away."""

import json
import random
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

# Of the calls that arrive, how many in a hundred are answered how.
SLOW, FAILING, LATE = 10, 10, 5


class Provider:
    """A provider that runs in threads of this process.

    Attributes:
        calls: the time of each call, by the monotonic clock, and its key, in their order.
        charges: the keys that were charged, each once, because they are recognized.
        answers: how many calls were answered how.
    """

    def __init__(self, late: float) -> None:
        """Start it; what it answers late, it answers after so many seconds."""
        self.calls: list[tuple[float, str]] = []
        self.charges: set[str] = set()
        self.answers = dict.fromkeys(("well", "slowly", "failed", "late"), 0)
        self.late = late
        self._chance = random.Random(5)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._port = 0
        self._server: ThreadingHTTPServer | None = None
        self.come_back()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.go_away()

    @property
    def address(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self._port}"

    def come_back(self) -> None:
        """Listen, where it did before."""
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                provider.answer(self)

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._server.daemon_threads = True
        self._port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=[0.02], daemon=True).start()

    def go_away(self) -> None:
        """Refuse connections from now on."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Charge the key of a request, unless it was charged before, and answer somehow."""
        at, key = time.monotonic(), request.headers["Idempotency-Key"]
        request.rfile.read(int(request.headers["Content-Length"]))
        with self._lock:
            self.calls.append((at, key))
            drawn = self._chance.randrange(100)
            how = "well"
            for name, share in (("slowly", SLOW), ("failed", FAILING), ("late", LATE)):
                if 0 <= drawn < share:
                    how = name
                drawn -= share
            self.answers[how] += 1
            if how != "failed":
                self.charges.add(key)
        self._ended.wait({"slowly": self.late / 4, "late": self.late}.get(how, 0))
        body = json.dumps({"receipt": key}).encode()
        with suppress(OSError):  # the caller gave up
            request.send_response(503 if how == "failed" else 200)
            request.send_header("Content-Length", str(len(body)))
            request.end_headers()
            request.wfile.write(body)
