"""Charges that a provider counts: it records each call in a table, by the server's clock."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import psycopg

from reservation import Component, Context, Rate

TABLE = """
CREATE TABLE public.calls (
  number bigint GENERATED ALWAYS AS IDENTITY, charge text, at timestamptz DEFAULT clock_timestamp()
)
"""
CALLED = b"INSERT INTO public.calls (charge) VALUES (%s)"
# Calls a second.
LIMIT = 20


@dataclass(frozen=True)
class Charge:
    charge_id: str
    customer_id: str


@dataclass(frozen=True)
class Charged:
    charge_id: str
    customer_id: str


@cache
def provider() -> psycopg.Connection[Any]:
    """Return the provider, as this process reaches it."""
    return psycopg.connect(os.environ["RESERVATION_DATABASE_URL"], autocommit=True)


def charge(command: Charge, entity: None, context: Context) -> Charged:
    provider().execute(CALLED, [command.charge_id])
    return context.follow(command, Charged)


async def charge_async(command: Charge, entity: None, context: Context) -> Charged:
    address = os.environ["RESERVATION_DATABASE_URL"]
    async with await psycopg.AsyncConnection.connect(address, autocommit=True) as connection:
        await connection.execute(CALLED, [command.charge_id])
    return context.follow(command, Charged)


def billing(handler: Callable[..., Any]) -> Component[None]:
    """Return the component."""
    component = Component("billing", id="customer_id")
    component.handle(Charge, key="charge_id", rate=Rate(LIMIT, per="1s"))(handler)
    component.message(Charged)
    return component


charges = billing(charge)
charges_async = billing(charge_async)
