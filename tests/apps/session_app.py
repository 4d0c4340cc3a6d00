"""An application whose endpoint sends its command in the transaction of a session of SQLAlchemy."""

from collections.abc import Awaitable, Callable
from typing import Any

from psycopg import conninfo
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.pool import NullPool
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from reservation.http import KeyedRequest
from tests.apps.http_app import Deposit, account, rendered, starlette_app

# What the team has in the database of the store. The owner is looked for at the commit.
TABLES = """
CREATE TABLE owners (id text PRIMARY KEY);
CREATE TABLE receipts (
  id text PRIMARY KEY, owner text REFERENCES owners DEFERRABLE INITIALLY DEFERRED
);
INSERT INTO owners VALUES ('alice');
"""
RECEIPT = "INSERT INTO receipts VALUES (:id, 'alice')"

Endpoint = Callable[[Request, KeyedRequest, AsyncSession, Deposit], Awaitable[Response]]


async def commit_then_wait(
    request: Request, keyed: KeyedRequest, session: AsyncSession, command: Deposit
) -> Response:
    async with session.begin():
        if await keyed.send(command, account, session=session):
            await session.execute(text(RECEIPT), {"id": keyed.key})
    return rendered(await keyed.wait_for(command, account), "1")


def session_app(
    database_url: str, *, endpoint: Endpoint = commit_then_wait, **options: Any
) -> Starlette:
    """Return the application; its endpoint is given the key, a session and a command."""
    engine = create_async_engine(
        "postgresql+psycopg://",
        connect_args=conninfo.conninfo_to_dict(database_url),
        poolclass=NullPool,
    )

    async def post(request: Request) -> Response:
        keyed, body = KeyedRequest.of(request), await request.json()
        command = Deposit(keyed.key, "123", body["amount"])
        async with AsyncSession(engine) as session:
            return await endpoint(request, keyed, session, command)

    routes = [Route("/receipts", post, methods=["POST"])]
    app: Starlette = starlette_app(database_url, routes=routes, **options)
    return app
