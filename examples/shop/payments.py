"""Payments: the component that calls the provider, and nothing else."""

import os
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import httpx

from reservation import Component, Context, Reject, Retry
from reservation.strategies import MessageIdInEvents
from shop.messages import Capture, Captured, Declined, Refund, Refunded

PROVIDER = os.environ.get("SHOP_PROVIDER", "http://127.0.0.1:8900")

# An outage of the provider is waited for; meanwhile the payments of others go on.
RETRY = Retry(attempts=100, first="200ms", most="5s", on=(httpx.HTTPError,))


@dataclass
class Payment:
    """What the events say about a payment.

    Attributes:
        captured: cents that were taken from the customer.
        refunded: cents that were given back.
    """

    captured: int = 0
    refunded: int = 0


payments = Component("payment", entity=Payment, id="payment_id")


@payments.handle(Capture, key="payment_id", once=MessageIdInEvents(), retry=RETRY, concurrency=50)
async def capture(command: Capture, payment: Payment, context: Context) -> Captured | Declined:
    """Take the money; a card that is declined is an answer, not a failure."""
    body = {"customer": command.customer_id, "cents": command.cents}
    status, answer = await call("charges", body, context)
    if status == HTTPStatus.PAYMENT_REQUIRED:
        return context.follow(command, Declined, reason=answer["reason"])
    return context.follow(command, Captured, receipt=answer["receipt"])


@payments.handle(Refund, key="refund_id", once=MessageIdInEvents(), retry=RETRY, concurrency=50)
async def refund(command: Refund, payment: Payment, context: Context) -> Refunded:
    """Give the money back, but never more than was taken."""
    if command.cents > payment.captured - payment.refunded:
        raise Reject("more than was captured")
    _, answer = await call("refunds", {"cents": command.cents}, context)
    return context.follow(command, Refunded, receipt=answer["receipt"])


@payments.project(Captured)
def captured(payment: Payment, event: Captured) -> None:
    payment.captured += event.cents


@payments.project(Refunded)
def refunded(payment: Payment, event: Refunded) -> None:
    payment.refunded += event.cents


payments.message(Declined)


async def call(path: str, body: dict[str, Any], context: Context) -> tuple[int, dict[str, Any]]:
    """Call the provider, which recognizes a repeated call by its key."""
    async with httpx.AsyncClient(base_url=PROVIDER, timeout=5) as client:
        key = {"Idempotency-Key": str(context.id("provider"))}
        response = await client.post(f"/{path}", json=body, headers=key)
    if response.status_code != HTTPStatus.PAYMENT_REQUIRED:
        response.raise_for_status()
    return response.status_code, response.json()
