"""A proxy between client and server that cuts or holds the connection at a chosen moment.

The client connects to it over TCP without encryption, so that it can look for the statement that
it is to wait for. One thread moves the bytes; all waiting is for sockets.
"""

import contextlib
import enum
import selectors
import socket
import threading
from dataclasses import dataclass
from typing import Self

from psycopg import conninfo

PATIENCE = 60.0
_READY_FOR_QUERY = b"Z\x00\x00\x00\x05"  # followed by one byte, the status of the transaction
_CHUNK = 1 << 16


class Cut(enum.Enum):
    """When the connection is cut, counted from a statement."""

    BEFORE = "before it reaches the server"
    WITHIN = "after a part of the answer"
    AFTER = "after it was executed, before any of the answer"


@dataclass(eq=False)
class _Link:
    client: socket.socket
    server: socket.socket
    cut: tuple[Cut, bytes] | None = None  # what comes of a statement that went to the server
    tail: bytes = b""


class Proxy:
    """Lets clients through to a server, until it is asked to cut.

    Attributes:
        address: what clients connect to.
        happened: set when the connection was cut, or held.
        unused: set while there is no connection.
    """

    def __init__(self, address: str) -> None:
        self._server = conninfo.conninfo_to_dict(address)
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.address = conninfo.make_conninfo(
            address, host="127.0.0.1", port=port, sslmode="disable", gssencmode="disable"
        )
        self.happened = threading.Event()
        self.unused = threading.Event()
        self._cut: tuple[Cut, bytes] | None = None
        self._requests_left: int | None = None
        self._held = False
        self._orders: list[tuple[str, threading.Event]] = []
        self._links: dict[socket.socket, _Link] = {}
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for source in (self._listener, self._woken):
            self._selector.register(source, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._order("stop")
        self._thread.join(PATIENCE)
        for resource in (self._listener, self._wake, self._woken, self._selector):
            resource.close()

    def cut(self, when: Cut, statement: str) -> None:
        """Cut the next connection that sends a statement that holds this text, once."""
        self.happened.clear()
        self._cut = (when, statement.encode())

    def hold(self, requests: int) -> None:
        """Let a number of further requests through, then nothing either way until `drop`.

        What is held never reaches the server, so a client that is killed then has come just so far.
        """
        self.happened.clear()
        self._requests_left = requests

    def drop(self) -> None:
        """Cut every connection, as a server does that is restarted."""
        self._order("drop")

    def silence(self) -> None:
        """Cut every connection, and answer nobody who connects, until `drop`."""
        self._order("silence")

    def _order(self, what: str) -> None:
        done = threading.Event()
        self._orders.append((what, done))
        self._wake.send(b"!")
        assert done.wait(PATIENCE)

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._woken:
                    self._woken.recv(1)
                    what, done = self._orders.pop(0)
                    for link in set(self._links.values()):
                        self._close(link)
                    self._release()
                    if what == "silence":
                        self._hold()
                    done.set()
                    if what == "stop":
                        return
                elif self._held:
                    break
                elif key.fileobj is self._listener:
                    self._accept()
                elif link := self._links.get(key.fileobj):
                    self._move(link, key.fileobj)

    def _hold(self) -> None:
        self._requests_left, self._held = None, True
        for source in (self._listener, *self._links):
            self._selector.unregister(source)
        self.happened.set()

    def _release(self) -> None:
        if self._held:
            self._held = False
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _accept(self) -> None:
        self.unused.clear()
        client, _ = self._listener.accept()
        link = _Link(client, self._connect())
        for end in (link.client, link.server):
            self._links[end] = link
            self._selector.register(end, selectors.EVENT_READ)

    def _connect(self) -> socket.socket:
        host, port = self._server.get("host") or "localhost", self._server.get("port") or 5432
        if not str(host).startswith("/"):
            return socket.create_connection((host, int(port)), PATIENCE)
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{host}/.s.PGSQL.{port}")
        return server

    def _move(self, link: _Link, source: socket.socket) -> None:
        try:
            data = source.recv(_CHUNK)
            if not data:
                self._close(link)
            elif source is link.client:
                self._to_server(link, data)
            else:
                self._to_client(link, data)
        except OSError:  # an end was closed meanwhile
            self._close(link)

    def _to_server(self, link: _Link, data: bytes) -> None:
        if self._requests_left is not None:
            if self._requests_left == 0:
                self._hold()
                return
            self._requests_left -= 1
        if self._cut is not None and self._cut[1] in data:
            link.cut, self._cut = self._cut, None  # no other connection is cut
            if link.cut[0] is Cut.BEFORE:
                self._do_cut(link)
                return
        link.server.sendall(data)

    def _to_client(self, link: _Link, data: bytes) -> None:
        if link.cut is None:
            link.client.sendall(data)
        elif link.cut[0] is Cut.WITHIN:
            link.client.sendall(data[: len(data) // 2])
            self._do_cut(link)
        else:
            link.tail = (link.tail + data)[-6:]
            if link.tail.startswith(_READY_FOR_QUERY):
                self._do_cut(link)

    def _do_cut(self, link: _Link) -> None:
        link.cut = None
        self.happened.set()  # before the client can see it
        self._close(link)

    def _close(self, link: _Link) -> None:
        if link.cut is not None:  # the server went before it answered: cut the next connection
            link.cut, self._cut = None, link.cut
        for end in (link.client, link.server):
            if self._links.pop(end, None) and not self._held:
                self._selector.unregister(end)
            with contextlib.suppress(OSError):
                end.close()
        if not self._links:
            self.unused.set()
