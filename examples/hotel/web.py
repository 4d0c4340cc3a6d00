"""The hotel's web app: a request to book is answered once, however often it is sent.

Run it with ``uvicorn hotel.web:app``, and with ``RESERVATION_DATABASE_URL`` set.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import date
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from fastapi import Request as HTTPRequest
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from hotel.bookings import bookings
from hotel.messages import Book, Booked, Cancel
from hotel.occupancy import occupancy
from hotel.tables import PRICES, Request, database
from reservation import AsyncMessageStore
from reservation.http import Idempotency, KeyedRequest

DATABASE_URL = os.environ.get("RESERVATION_DATABASE_URL", "")


def guest(request: HTTPRequest) -> str | None:
    """Return who sends a request. A real hotel would verify the token."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token if scheme == "Bearer" and token else None


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Keep a store and an engine open as long as the app runs."""
    app.state.engine = create_async_engine("postgresql+psycopg://", connect_args=database())
    async with await AsyncMessageStore.open(DATABASE_URL) as app.state.store:
        yield
    await app.state.engine.dispose()


app = FastAPI(lifespan=lifespan)
app.add_middleware(Idempotency, database_url=DATABASE_URL, scope=guest)


class Wish(BaseModel):
    room: str
    first: date
    nights: int = Field(ge=1, le=30)


@app.post("/bookings")
async def book(
    request: HTTPRequest, wish: Wish, keyed: Annotated[KeyedRequest, Depends(KeyedRequest.of)]
) -> JSONResponse:
    """Note what the guest asks for, and send the command, in one transaction."""
    if wish.room not in PRICES:
        raise HTTPException(422, f"there is no {wish.room}")
    name = guest(request) or ""
    command = Book(booking_id=keyed.key, guest_id=name, **wish.model_dump())
    async with AsyncSession(app.state.engine) as session, session.begin():
        if await keyed.send(command, bookings, session=session):
            session.add(Request(booking_id=keyed.key, guest_id=name, room=wish.room))
    outcome = await keyed.wait_for(command, bookings)
    if outcome.state == "rejected":
        return JSONResponse({"reason": outcome.reason}, 409)
    (booked,) = outcome.events_of(Booked)
    answer = {"booking": booked.booking_id, "cents": booked.cents, "position": outcome.position}
    return JSONResponse(answer, 201)


@app.post("/bookings/{booking_id}/cancellation")
async def cancel(
    booking_id: str, keyed: Annotated[KeyedRequest, Depends(KeyedRequest.of)]
) -> JSONResponse:
    """Cancel a booking. A real hotel would look whose it is."""
    outcome = await keyed.send(Cancel(booking_id=booking_id, reason="by the guest"), bookings)
    return JSONResponse({"position": outcome.position})


@app.get("/occupancy/{night}")
async def show(night: date, after: int = 0) -> dict[str, int]:
    """Show how many rooms are taken in a night, at least up to a position that the guest knows."""
    if not await occupancy.wait_for(app.state.store, after, timeout=5):
        raise HTTPException(503, "not counted yet", {"Retry-After": "1"})
    async with AsyncSession(app.state.engine) as session:
        rows = await session.execute(
            text("SELECT room, taken FROM occupancy.nights WHERE night = :night"), {"night": night}
        )
        return dict(rows.tuples().all())
