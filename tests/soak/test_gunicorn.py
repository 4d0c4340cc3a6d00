"""Applications that gunicorn loads before it forks its workers."""

import http.client
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.apps.forking import WRITES, Turns
from tests.processes.test_forks import ROOT, check_answers
from tests.support.ports import free_port
from tests.support.started import PATIENCE

CLIENTS = 6


@contextmanager
def gunicorn(app: str, url: str, *options: str) -> Iterator[int]:
    """Serve an application that the master loads; give the port."""
    port = free_port()
    words = ["--preload", "--bind", f"127.0.0.1:{port}", "--workers", "4", "--no-control-socket"]
    with subprocess.Popen(
        [sys.executable, "-m", "gunicorn", *words, *options, f"tests.apps.forking:{app}()"],
        cwd=ROOT,
        env={**os.environ, "FORKING_DATABASE_URL": url},
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stderr is not None
        lines: list[str] = []
        booted = threading.Event()

        def read() -> None:
            for line in server.stderr or ():
                lines.append(line)
                if sum("Booting worker" in one for one in lines) == 4:
                    booted.set()
            booted.set()

        reader = threading.Thread(target=read)
        reader.start()
        try:
            assert booted.wait(PATIENCE)
            assert server.poll() is None, lines
            yield port
        finally:
            server.terminate()
            assert server.wait(PATIENCE) == 0
            reader.join()
        assert not [line for line in lines if "Traceback" in line or "ERROR" in line], lines


def requests(port: int, number: int, said: list[Any]) -> None:
    """Send the writes of one client, each on a connection of its own."""
    turns = Turns(number)
    for stream, expected, id_ in turns:
        named = {"stream": stream, "id": id_}
        if expected is not None:
            named["expected"] = str(expected)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        with closing(connection):
            connection.request("POST", f"/?{urlencode(named)}")
            answer = connection.getresponse()
            body = answer.read()
        said.append(json.loads(body) if answer.status == 200 else body.decode())
        if isinstance(said[-1], dict):
            turns.said(stream, said[-1]["position"])


@pytest.mark.parametrize(
    ("app", "options"), [("wsgi", ["--threads", "3"]), ("asgi", ["--worker-class", "asgi"])]
)
def test_what_gunicorn_preloads_answers_as_the_store_does(database_url, connection, app, options):
    """Workers share no connection, so each answer is that of its own write."""
    said: list[Any] = []
    with gunicorn(app, database_url, *options) as port:
        clients = [
            threading.Thread(target=requests, args=(port, number, said))
            for number in range(CLIENTS)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
    assert len(said) == CLIENTS * WRITES
    check_answers(said, connection)
