"""A payment provider for trying the shop out: slow, failing now and then, and idempotent.

Run it with ``python -m shop.provider``. What it has charged and refunded is in a file, so that it
knows a repeated request even after it was killed. ``GET /ledger`` shows it.
"""

import argparse
import json
import random
import sqlite3
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DECLINED = "broke"  # the customers whose name begins so have no money

_TABLE = """
CREATE TABLE IF NOT EXISTS answers (
  key text PRIMARY KEY, path text, body text, status integer, answer text)
"""


class Ledger:
    """The answers that were given, by their idempotency keys."""

    def __init__(self, file: str) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
        self._connection.execute(_TABLE)

    def answer(self, key: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return what was answered first, or decide and record it."""
        content = json.dumps(body, sort_keys=True)
        with self._lock:
            known = self._connection.execute(
                "SELECT path, body, status, answer FROM answers WHERE key = ?", [key]
            ).fetchone()
            if known is None:
                status, answer = decide(key, path, body)
                self._connection.execute(
                    "INSERT INTO answers VALUES (?, ?, ?, ?, ?)",
                    [key, path, content, status, json.dumps(answer)],
                )
                return status, answer
        if known[:2] != (path, content):
            return HTTPStatus.UNPROCESSABLE_ENTITY, {"reason": "the key was used otherwise"}
        return known[2], json.loads(known[3])

    def entries(self) -> list[dict[str, Any]]:
        """Return what took effect, in order."""
        with self._lock:
            rows = self._connection.execute(
                "SELECT path, body, answer FROM answers WHERE status = 200 ORDER BY rowid"
            ).fetchall()
        return [
            {"path": path, **json.loads(body), **json.loads(answer)} for path, body, answer in rows
        ]


def decide(key: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Decide on a charge or a refund."""
    if path == "/charges" and body["customer"].startswith(DECLINED):
        return HTTPStatus.PAYMENT_REQUIRED, {"reason": "card declined"}
    return HTTPStatus.OK, {"receipt": f"{path[1:-1]}-{key[:8]}"}


class Server(ThreadingHTTPServer):
    """Answers slowly, and fails as often as it is told to."""

    request_queue_size = 128

    def __init__(self, port: int, file: str, fail: float, delay: float) -> None:
        super().__init__(("127.0.0.1", port), Request)
        self.ledger = Ledger(file)
        self.fail, self.delay = fail, delay


class Request(BaseHTTPRequestHandler):
    """A request to the provider."""

    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._send(HTTPStatus.OK, self.server.ledger.entries())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(random.uniform(0, 2 * self.server.delay))
        # A failure comes before the charge, or after it, as failures do.
        before, after = (random.random() < self.server.fail / 2 for _ in range(2))
        if before:
            return self._send(HTTPStatus.SERVICE_UNAVAILABLE, {"reason": "try again"})
        status, answer = self.server.ledger.answer(self.headers["Idempotency-Key"], self.path, body)
        if after:
            return self._send(HTTPStatus.INTERNAL_SERVER_ERROR, {"reason": "who knows"})
        return self._send(status, answer)

    def _send(self, status: int, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def main() -> None:
    """Run the provider until it is told to stop."""
    parser = argparse.ArgumentParser(prog="python -m shop.provider", description=__doc__)
    parser.add_argument("--port", type=int, default=8900)
    parser.add_argument("--file", default="provider.db", help="where the ledger is kept")
    parser.add_argument("--fail", type=float, default=0.1, help="the part of requests that fail")
    parser.add_argument("--delay", type=float, default=0.1, help="seconds that one takes")
    options = parser.parse_args()
    server = Server(options.port, options.file, options.fail, options.delay)
    print(f"The provider answers at http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
