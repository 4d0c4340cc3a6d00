"""Processes that fork: applications for gunicorn, and programs that are run one after the other.

Each line of the input is a name and an address, as JSON, and what that program found is a line of
the output. It is a process of its own, because forking the one that runs the tests would copy its
threads' locks.
"""

import asyncio
import ctypes
import json
import multiprocessing
import os
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg_pool import ConnectionPool
from structlog.testing import capture_logs

import consumers
from reservation import AsyncMessageStore, Component, Context, MessageStore, Write
from reservation.errors import ExpectedVersionError, StoreError
from reservation.strategies import Processed

CHILDREN, WRITES = 8, 25


@dataclass
class Note:
    note_id: str
    text: str


@dataclass
class Noted:
    note_id: str


@dataclass
class Notes:
    pass


URL = os.environ.get("FORKING_DATABASE_URL", "")


def attempt(store: MessageStore, stream: str, expected: int | None, id_: str) -> dict[str, Any]:
    """Write one message; return what the store said."""
    tried = {"stream": stream, "expected": expected, "id": id_, "process": os.getpid()}
    try:
        write = Write(Noted(id_), stream, uuid.UUID(id_), expected_version=expected)
        return {**tried, "position": store.write_batch([write])[0]}
    except ExpectedVersionError:
        return {**tried, "position": None}


async def attempt_async(
    store: AsyncMessageStore, stream: str, expected: int | None, id_: str
) -> dict[str, Any]:
    """Do the same with the other client."""
    tried = {"stream": stream, "expected": expected, "id": id_, "process": os.getpid()}
    try:
        write = Write(Noted(id_), stream, uuid.UUID(id_), expected_version=expected)
        return {**tried, "position": (await store.write_batch([write]))[0]}
    except ExpectedVersionError:
        return {**tried, "position": None}


class Turns:
    """What a writer tries next, beside others that write to the same streams.

    Mostly it expects the version that it knows of; then only one of them can be right.
    """

    def __init__(self, number: int) -> None:
        self._ids = [str(uuid.UUID(int=1 + number * WRITES + turn)) for turn in range(WRITES)]
        self._versions: dict[str, int] = {}

    def __iter__(self) -> Iterator[tuple[str, int | None, str]]:
        for turn, id_ in enumerate(self._ids):
            stream = f"account-{turn % 3}"
            yield stream, None if turn % 5 == 0 else self._versions.get(stream, -1), id_

    def said(self, stream: str, position: int | None) -> None:
        """Note what the store said; None where somebody else was faster."""
        known = self._versions.get(stream, -1)
        self._versions[stream] = known + 1 if position is None else position


def asked(query: str) -> tuple[str, int | None, str]:
    """Return the stream, the expected version and the id that a request names."""
    named = {name: values[0] for name, values in parse_qs(query).items()}
    expected = named.get("expected")
    return named["stream"], None if expected is None else int(expected), named["id"]


def wsgi() -> Any:
    """Return an application whose store is opened, and used, when it is loaded."""
    store = MessageStore.open(URL)
    store.stream_version("account-0")

    def application(environ: Any, start_response: Any) -> list[bytes]:
        said = attempt(store, *asked(environ["QUERY_STRING"]))
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(said).encode()]

    return application


def asgi() -> Any:
    """Return the same with the other client, which was opened in another event loop."""

    async def open_() -> AsyncMessageStore:
        # So the pool is not connecting when the loop ends, which would hold up its end.
        store = await AsyncMessageStore.open(URL, max_connections=1, gather=True)
        await store.stream_version("account-0")
        return store

    store = asyncio.run(open_())

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                await send({"type": f"{message['type']}.complete"})
                if message["type"] == "lifespan.shutdown":
                    return
        said = await attempt_async(store, *asked(scope["query_string"].decode()))
        body = json.dumps(said).encode()
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return application


# Any: what children give back.
def in_children(work: Callable[[int], Any], count: int = CHILDREN) -> list[Any]:
    """Run a function in forks of this process at the same time; return what each returns."""
    context = multiprocessing.get_context("fork")
    results = [context.Pipe(duplex=False) for _ in range(count)]
    begin = context.Event()

    def child(number: int) -> None:
        begin.wait()
        try:
            results[number][1].send(work(number))
        except BaseException as error:
            results[number][1].send(f"{type(error).__name__}: {error}")
            raise

    processes = [context.Process(target=child, args=(number,)) for number in range(count)]
    for process in processes:
        process.start()
    begin.set()
    found = []
    for (receiving, _), process in zip(results, processes, strict=True):
        found.append(receiving.recv() if receiving.poll(40) else "it hangs")
        if found[-1] == "it hangs":
            process.kill()
        process.join()
    return found


@contextmanager
def busy(store: MessageStore, threads: int = 3) -> Iterator[None]:
    """Have threads write without a pause, so that a fork finds locks taken."""
    stop = threading.Event()

    def work(number: int) -> None:
        while not stop.is_set():
            store.write(Noted("1"), f"busy-{number}")

    running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in running:
            thread.join()


def many_children(url: str) -> Any:
    """Have many children and the parent write at once, with the sync client."""
    with MessageStore.open(url) as store, busy(store):

        def work(number: int) -> list[Any]:
            said, turns = [], Turns(number)
            for stream, expected, id_ in turns:
                said.append(attempt(store, stream, expected, id_))
                turns.said(stream, said[-1]["position"])
            return said

        return in_children(work)


def many_async_children(url: str) -> Any:
    """The same with the other client."""

    async def parent() -> Any:
        async with await AsyncMessageStore.open(url, gather=True) as store:
            await store.stream_version("account-0")

            async def work(number: int) -> list[Any]:
                said, turns = [], Turns(number)
                for stream, expected, id_ in turns:
                    said.append(await attempt_async(store, stream, expected, id_))
                    turns.said(stream, said[-1]["position"])
                return said

            found = in_children(lambda number: asyncio.run(work(number)))
            await store.stream_version("account-0")
            return found

    return asyncio.run(parent())


def ended(work: Callable[[], Any]) -> int:
    """Run a function in a fork that ends as programs do; return its exit status."""
    child = os.fork()
    if not child:
        work()
        sys.exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def sessions(url: str, count: int) -> list[int]:
    """Return the processes of the server that serve others, once there are so many."""
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(500):
            found = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
                "AND pid <> pg_backend_pid() AND application_name = 'forking' ORDER BY pid"
            ).fetchall()
            if len(found) == count:
                break
            threading.Event().wait(0.01)  # one that was closed takes a moment to end
    return [pid for (pid,) in found]


def endings(url: str) -> Any:
    """Fork children that end in each way; return the server's sessions before and after."""
    given = psycopg.connect(url, autocommit=True)
    pool: ConnectionPool[Any] = ConnectionPool(url, min_size=1, open=True)
    with MessageStore.open(url, max_connections=1) as store:
        stores = [store, MessageStore(given), MessageStore(pool)]
        for one in stores:
            one.stream_version("account-0")
        before = sessions(url, 3)

        def close_all() -> None:
            for one in stores:
                one.close()

        def use_and_leave() -> None:
            with store:
                store.write(Noted("1"), "account-0")

        statuses = [ended(work) for work in (lambda: None, close_all, use_and_leave)]
        after = sessions(url, 3)
        for one in stores:
            one.write(Noted("1"), "account-0")
    given.close()
    pool.close()
    return {"statuses": statuses, "before": before, "after": after}


def refused(url: str) -> Any:
    """Return what is said in a fork of stores that were given what was opened before it."""
    loop = asyncio.new_event_loop()
    asynchronous = loop.run_until_complete(psycopg.AsyncConnection.connect(url, autocommit=True))
    with (
        psycopg.connect(url, autocommit=True) as given,
        ConnectionPool(url, min_size=1, open=True) as pool,
    ):
        on_connection, on_pool = MessageStore(given), MessageStore(pool)
        on_async = AsyncMessageStore(asynchronous)
        uses: dict[str, Callable[[], Any]] = {
            "connection": lambda: on_connection.write(Noted("1"), "account-0"),
            "pool": lambda: on_pool.write(Noted("1"), "account-0"),
            "async": lambda: asyncio.run(on_async.stream_version("account-0")),
        }

        def work(_: int) -> dict[str, Any]:
            said = {}
            for name, use in uses.items():
                try:
                    said[name] = repr(use())
                except StoreError as error:
                    said[name] = str(error)
            return said

        (found,) = in_children(work, 1)
        loop.run_until_complete(asynchronous.close())
        loop.close()
        return found


def without_hooks(url: str) -> Any:
    """Fork as C code does that does not tell Python."""
    with MessageStore.open(url, max_connections=1) as store:
        store.write(Noted("a"), "account-0")
        before = sessions(url, 1)
        reading, written = os.pipe()
        child = ctypes.PyDLL(None).fork()
        if not child:
            try:
                position = store.write(Noted("b"), "account-0")
                os.write(written, json.dumps([position, sessions(url, 2)]).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        os.close(written)
        position, during = json.loads(os.read(reading, 1000))
        return {
            "positions": [position, store.write(Noted("c"), "account-0")],
            "sessions": [len(before), len(during), before == sessions(url, 1)],
        }


def orphan(url: str) -> Any:
    """End without a word while a child goes on; print the child and the session."""
    store = MessageStore.open(url, max_connections=1)
    store.write(Noted("1"), "account-0")
    (session,) = sessions(url, 1)
    child = os.fork()
    if not child:
        os.close(1)
        os.close(2)
        sys.stdin.read()  # until the test ends it
        os._exit(0)
    sys.stdout.write(json.dumps({"child": child, "session": session}) + "\n")
    sys.stdout.flush()
    os._exit(0)


def waiting(url: str) -> Any:
    """Wait for an outcome before the fork, in it and after it."""
    from tests.apps.http_app import Deposit, account

    question = account.question(
        Deposit("d", "1", 1), stream_name="account:command-1", message_id=uuid.UUID(int=1)
    )
    with MessageStore.open(url, max_connections=1) as store:
        store.write(Deposit("d", "1", 1), "account:command-1", id=uuid.UUID(int=1))
        states = [store.wait_for(question, timeout=0.2).state]
        before = sessions(url, 2)
        states += in_children(lambda _: store.wait_for(question, timeout=0.2).state, 2)
        status = ended(lambda: store.wait_for(question, timeout=0.2))
        kept = before == sessions(url, 2)
        states.append(store.wait_for(question, timeout=0.2).state)
        return {"states": states, "kept": kept, "status": status}


def handlers(url: str) -> Any:
    """Run consumers whose handlers fork; return what the forks said and how they ended."""
    component, said = Component("noted", entity=Notes, id="note_id"), []
    component.message(Noted)

    @component.handle(Note, once=Processed())
    def note(command: Note, entity: Notes, context: Context) -> Noted:
        reading, written = os.pipe()
        child = os.fork()
        if not child:
            try:
                if command.text == "use":
                    context.connection.execute("SELECT 1")
                os.write(written, b"here")
                os.close(written)
            except BaseException as error:
                os.write(written, str(error).encode())
                raise
            if command.text == "stop":
                threading.Event().wait()
            return Noted("the fork's own")
        os.close(written)
        text = os.read(reading, 1000).decode()
        if command.text == "stop":
            os.kill(child, signal.SIGTERM)
        said.append([text, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])])
        return Noted(command.note_id)

    with MessageStore.open(url) as store:
        for number, text in enumerate(["use", "stop", "return", "use"]):
            store.write(Note(str(number), text), f"noted:command-{number}")
        with capture_logs():
            consumers.drain(component, url)
        notes = [event.decode(Noted).note_id for event in store.read_category("noted")]
    return {"said": said, "notes": notes}


def over_http(url: str) -> Any:
    """Answer requests in forks of a process that has answered some."""
    import httpx

    from tests.apps.http_app import key_headers, starlette_app

    app = starlette_app(url)

    async def post(key: str) -> Any:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            while True:
                answer = await client.post(
                    "/accounts/1/deposits", json={"amount": 1}, headers=key_headers(key)
                )
                if answer.status_code != 409:
                    return answer.json()
                await asyncio.sleep(0.01)

    async def several(own: str) -> list[Any]:
        return [await post(key) for key in ("first", "shared", own)]

    with asyncio.Runner() as runner:
        first = runner.run(post("first"))
        children = in_children(lambda number: asyncio.run(several(f"own {number}")), 4)
        return {"first": first, "children": children, "last": runner.run(several("parent"))}


def many_forks(url: str) -> Any:
    """Fork again and again while threads use the store; each child uses it and ends."""
    with MessageStore.open(url, max_connections=2) as store, busy(store):
        return [ended(lambda: store.stream_version("account-0")) for _ in range(4)]


def grandchildren(url: str) -> Any:
    """Fork in forks."""
    with MessageStore.open(url, max_connections=1) as store:

        def work(number: int) -> list[Any]:
            below = in_children(lambda _: store.write(Noted("1"), f"below-{number}"), 2)
            return [store.write(Noted("1"), f"child-{number}"), sorted(below)]

        return in_children(work, 2)


if __name__ == "__main__":
    for line in iter(sys.stdin.readline, ""):
        name, address = json.loads(line)
        found = globals()[name](make_conninfo(address, application_name="forking"))
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
