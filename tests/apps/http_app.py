"""A bank's accounts behind HTTP, in Starlette and in FastAPI, and servers that run it.

Every answer that is rendered holds a number drawn for it, so that an answer that was rendered again
is seen to be another one.
"""

import multiprocessing
import threading
import uuid
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Self

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

import consumers
from reservation import Component, Reject
from reservation.http import Idempotency, KeyedRequest

PATIENCE = 60.0


@dataclass
class Open:
    account_id: str
    owner: str


@dataclass
class Opened:
    account_id: str
    owner: str


@dataclass
class Deposit:
    deposit_id: str
    account_id: str
    amount: int


@dataclass
class Deposited:
    deposit_id: str
    account_id: str
    amount: int


@dataclass
class Balance:
    amount: int = 0


account = Component("account", entity=Balance, id="account_id", attempts=1)
account.message(Opened)


@account.initiate(Open)
def open_account(command: Open, context: Any) -> Opened:
    return Opened(command.account_id, command.owner)


@account.handle(Deposit, key="deposit_id")
def deposit(command: Deposit, entity: Balance, context: Any) -> Deposited:
    if command.amount < 0:
        raise Reject("an amount is not negative")
    if command.amount == 666_666:
        raise ValueError(command.amount)
    return Deposited(command.deposit_id, command.account_id, command.amount)


@account.project(Deposited)
def deposited(entity: Balance, event: Deposited) -> None:
    entity.amount += event.amount


def principal(request: Request) -> str | None:
    """Return who sends a request: what its bearer token says."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token if scheme == "Bearer" else None


# Servers and consumers start at the same time, and either may take long.
STANDARD = {"scope": principal, "timeout": PATIENCE}


def rendered(outcome: Any, version: str) -> JSONResponse:
    if outcome.state == "rejected":
        return JSONResponse({"reason": outcome.reason, "drawn": uuid.uuid4().hex}, 402)
    (event,) = outcome.events
    shown = {"amount": event.amount, "version": version, "drawn": uuid.uuid4().hex}
    answer = JSONResponse(shown, 201, {"X-Version": version, "Date": "then", "X-Latin": "é"})
    answer.set_cookie("session", uuid.uuid4().hex)
    return answer


def starlette_app(
    database_url: str, *, version: str = "1", routes: Any = (), **options: Any
) -> Any:
    """Return the application in Starlette."""

    async def post_deposit(request: Request) -> Response:
        keyed, body = KeyedRequest.of(request), await request.json()
        if not isinstance(body.get("amount"), int):
            return JSONResponse({"detail": "an amount is a number", "drawn": uuid.uuid4().hex}, 400)
        command = Deposit(keyed.key, request.path_params["account_id"], body["amount"])
        return rendered(await keyed.send(command, account), version)

    return Starlette(
        routes=[*routes, Route("/accounts/{account_id}/deposits", post_deposit, methods=["POST"])],
        middleware=[
            Middleware(Idempotency, **{**STANDARD, "database_url": database_url, **options})
        ],
    )


@dataclass
class Body:
    amount: int


def fastapi_app(database_url: str, *, version: str = "1", **options: Any) -> Any:
    """Return the application in FastAPI, which takes long to import."""
    from fastapi import Depends, FastAPI

    app = FastAPI()
    app.add_middleware(Idempotency, **{**STANDARD, "database_url": database_url, **options})

    @app.post("/accounts/{account_id}/deposits")
    async def post_deposit(
        account_id: str, body: Body, keyed: Annotated[KeyedRequest, Depends(KeyedRequest.of)]
    ) -> Response:
        outcome = await keyed.send(Deposit(keyed.key, account_id, body.amount), account)
        return rendered(outcome, version)

    return app


class Started(uvicorn.Server):
    """A uvicorn that says when it listens."""

    def __init__(self, app: Any, port: int, tell: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error", ws="none")
        )
        self._tell = tell

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self._tell()


@contextmanager
def serving(app: Any) -> Any:
    """Serve an application in a thread of this process; give its address."""
    started = threading.Event()
    server = Started(app, 0, started.set)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert started.wait(PATIENCE)
        (listening,) = (s for one in server.servers for s in one.sockets)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE)


@contextmanager
def consuming(database_url: str, component: Component[Any] = account) -> Any:
    """Run a component's consumers in a thread."""
    stop = threading.Event()
    thread = threading.Thread(
        target=consumers.run, args=(component, database_url), kwargs={"stop": stop}
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(PATIENCE)


@contextmanager
def bank(make: Callable[..., Any], database_url: str, **options: Any) -> Any:
    """Serve an application and run its consumers; give its address."""
    with consuming(database_url), serving(make(database_url, **options)) as address:
        yield address


def serve(make: Callable[..., Any], port: int, tell: Any, options: dict[str, Any]) -> None:
    """Serve an application, in a process of its own."""
    Started(make(**options), port, lambda: tell.send(None)).run()


class Server:
    """A uvicorn in a process of its own, to be killed; another may follow it on its port."""

    def __init__(self, make: Callable[..., Any], port: int, **options: Any) -> None:
        self.address = f"http://127.0.0.1:{port}"
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["pytest", "tests.apps.http_app"])
        self._told, tell = context.Pipe(duplex=False)
        self._process = context.Process(target=serve, args=(make, port, tell, options))
        self._process.start()
        tell.close()

    def __enter__(self) -> Self:
        self.await_start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def await_start(self) -> None:
        """Wait until it listens."""
        assert self._told.poll(PATIENCE)
        self._told.recv()

    def kill(self) -> None:
        """End it with SIGKILL."""
        self._process.kill()
        self._process.join(PATIENCE)
        self._told.close()


def key_headers(key: str, tenant: str = "alice", **more: str) -> dict[str, str]:
    """Return the headers of a tenant's request."""
    return {"Idempotency-Key": f'"{key}"', "Authorization": f"Bearer {tenant}", **more}


def plain(text: str = "") -> Any:
    """Return an endpoint that sends no command."""

    async def endpoint(request: Request) -> Response:
        return PlainTextResponse(text or uuid.uuid4().hex)

    return endpoint
