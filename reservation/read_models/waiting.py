"""Waiting until the views of a read model show what is recorded up to a position."""

import asyncio
import time
from collections.abc import Sequence

from psycopg import AsyncConnection, Connection

from reservation.declaration.model_version import ModelVersion
from reservation.errors import StoreError
from reservation.postgres.arrays import TextArray
from reservation.postgres.queries import load_queries
from reservation.store.answers.listeners import check_free
from reservation.store.answers.pace import Pace
from reservation.store.async_client import AsyncMessageStore
from reservation.store.client import MessageStore
from reservation.store.statements import Statement

_QUERIES = load_queries("reservation.read_models")


def wait(
    store: MessageStore,
    model: ModelVersion,
    categories: Sequence[str],
    position: int,
    timeout: float,
) -> bool:
    """Ask until the views show it, or the time is over; return whether they do."""
    pace, statement = Pace(timeout), _shows(model, categories, position)
    if isinstance(store._source, Connection):
        check_free(store._source)
    while not (shown := store._run(statement)) and not pace.is_over:
        time.sleep(pace.pause(notices=False))
    return shown


async def wait_async(
    store: AsyncMessageStore,
    model: ModelVersion,
    categories: Sequence[str],
    position: int,
    timeout: float,
) -> bool:
    """Ask until the views show it, or the time is over; return whether they do."""
    pace, statement = Pace(timeout), _shows(model, categories, position)
    if isinstance(store._source, AsyncConnection):
        check_free(store._source)
    while not (shown := await store._run(statement)) and not pace.is_over:
        await asyncio.sleep(pace.pause(notices=False))
    return shown


def _shows(model: ModelVersion, categories: Sequence[str], position: int) -> Statement[bool]:
    if not isinstance(position, int) or isinstance(position, bool) or position < 0:
        raise StoreError(
            f"position={position!r} is not a global position; give that of an event, such as "
            f"Outcome.position"
        )
    parameters = [model.name, model.schema, TextArray(categories), position]
    return Statement(_QUERIES["shows"], parameters, lambda rows: bool(rows[0][0]))
