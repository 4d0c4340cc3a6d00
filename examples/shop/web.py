"""The shop's web app: a request to order is answered once, however often it is sent.

Run it with ``uvicorn shop.web:app``, and with ``RESERVATION_DATABASE_URL`` set.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from reservation import AsyncMessageStore
from reservation.http import Idempotency, KeyedRequest
from shop.messages import Cancelled, Paid, Place, Placed
from shop.orders import orders

DATABASE_URL = os.environ.get("RESERVATION_DATABASE_URL", "")


def customer(request: Request) -> str | None:
    """Return who sends a request. A real shop would verify the token."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token if scheme == "Bearer" and token else None


async def place(request: Request) -> JSONResponse:
    """Place an order. Its id is made of the customer and the key, so there is one for each key."""
    keyed, body = KeyedRequest.of(request), await request.json()
    if not isinstance(body, dict) or not isinstance(body.get("item"), str):
        raise HTTPException(400, "name an item")
    command = Place(keyed.key, customer(request) or "", body["item"])
    outcome = await keyed.send(command, orders)
    if outcome.state == "rejected":
        return JSONResponse({"reason": outcome.reason}, 422)
    (placed,) = outcome.events_of(Placed)
    return JSONResponse({"order": placed.order_id, "cents": placed.cents}, 201)


async def show(request: Request) -> JSONResponse:
    """Show an order to its customer."""
    shown: dict[str, str] = {}
    store: AsyncMessageStore = request.state.store
    async for message in store.read_stream(f"order-{request.path_params['order_id']}"):
        match message.type:
            case "Placed":
                placed = message.decode(Placed)
                if placed.customer_id != customer(request):
                    break
                shown = {"state": "placed", "item": placed.item}
            case "Paid":
                shown |= {"state": "paid", "receipt": message.decode(Paid).receipt}
            case "Cancelled":
                shown |= {"state": "cancelled", "reason": message.decode(Cancelled).reason}
    if not shown:
        raise HTTPException(404)
    return JSONResponse(shown)


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[dict[str, AsyncMessageStore]]:
    """Keep a store open as long as the app runs."""
    async with await AsyncMessageStore.open(DATABASE_URL) as store:
        yield {"store": store}


app = Starlette(
    routes=[
        Route("/orders", place, methods=["POST"]),
        Route("/orders/{order_id:uuid}", show),
    ],
    middleware=[Middleware(Idempotency, database_url=DATABASE_URL, scope=customer)],
    lifespan=lifespan,
)
