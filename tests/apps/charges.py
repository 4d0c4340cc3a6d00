"""Charges behind HTTP as Stripe's own client library asks for them."""

import os
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

import stripe
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from reservation import Component, Reject
from reservation.http import Idempotency, KeyedRequest
from tests.apps.http_app import principal


@dataclass
class Charge:
    charge_id: str
    customer: str
    amount: int


@dataclass
class Charged(Charge):
    pass


charges = Component("charge", id="customer")


@charges.handle(Charge, key="charge_id")
def charge(command: Charge, entity: None, context: Any) -> Charged:
    if command.amount > 1000:
        raise Reject("card_declined")
    return Charged(command.charge_id, command.customer, command.amount)


async def create(request: Request) -> Response:
    keyed = KeyedRequest.of(request)
    form = parse_qs((await request.body()).decode())
    command = Charge(keyed.key, form["customer"][0], int(form["amount"][0]))
    outcome = await keyed.send(command, charges)
    if outcome.state == "rejected":
        error = {"type": "card_error", "code": outcome.reason, "message": "Declined."}
        return JSONResponse({"error": error}, 402)
    charged = outcome.events[0]
    return JSONResponse(
        {
            "id": f"pi_{charged.charge_id}",
            "object": "payment_intent",
            "amount": charged.amount,
            "metadata": {"process": str(os.getpid())},
        }
    )


def app(database_url: str) -> Starlette:
    """Return the application."""
    return Starlette(
        routes=[Route("/v1/payment_intents", create, methods=["POST"])],
        middleware=[
            Middleware(
                Idempotency,
                database_url=database_url,
                scope=principal,
                timeout=30,
            )
        ],
    )


def client_of(address: str, api_key: str = "sk_test_alice") -> stripe.StripeClient:
    """Return Stripe's client for a server of ours."""
    addresses = {"api": address}
    return stripe.StripeClient(api_key, base_addresses=addresses, max_network_retries=8)


PARAMS = {"amount": 500, "currency": "eur", "customer": "cus_1"}
CHARGED = "SELECT count(*) FROM message_store.messages WHERE type = 'Charged'"
