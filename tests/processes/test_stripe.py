"""Stripe's own client library, which retries with its own key, pointed at ``reservation.http``."""

import os
import threading
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

import pytest
import stripe
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from reservation import Component, Reject
from reservation.http import Idempotency, KeyedRequest
from tests.apps.http_app import PATIENCE, Server, consuming, principal, serving
from tests.support.consuming import until
from tests.support.ports import free_port


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


def client_of(address, api_key="sk_test_alice"):
    """Return Stripe's client for a server of ours."""
    addresses = {"api": address}
    return stripe.StripeClient(api_key, base_addresses=addresses, max_network_retries=8)


def serve(database_url, port):
    return Server(app, port, database_url=database_url)


PARAMS = {"amount": 500, "currency": "eur", "customer": "cus_1"}
SENT = "SELECT count(*) FROM message_store.messages WHERE stream_name LIKE %s"

COMMANDS = "charge:command-%"


def count(connection, what):
    return connection.execute(
        f"SELECT count(*) FROM message_store.messages WHERE type = '{what}'"
    ).fetchone()[0]


def test_the_retry_of_stripes_client_is_answered_when_a_server_was_killed(database_url, connection):
    """A server dies after the commit; the client retries by itself with its key, charged once."""
    port, results = free_port(), []
    with serve(database_url, port) as first:
        client = client_of(first.address)
        calling = threading.Thread(
            target=lambda: results.append(client.v1.payment_intents.create(PARAMS))
        )
        calling.start()
        until(lambda: connection.execute(SENT, [COMMANDS]).fetchone() == (1,))
        first.kill()
    with serve(database_url, port), consuming(database_url, charges):
        calling.join(PATIENCE)
    (intent,) = results
    assert (intent.amount, intent.object) == (500, "payment_intent")
    assert connection.execute(SENT, [COMMANDS]).fetchone() == (1,)
    assert count(connection, "Charged") == 1
    rows = "SELECT count(*), count(status) FROM reservation.http_requests"
    assert connection.execute(rows).fetchone() == (1, 1)


def test_stripes_client_gets_its_answers_again(database_url, connection):
    """The same key gives the same object, each account its own; other parameters are refused."""
    with serving(app(database_url)) as address, consuming(database_url, charges):
        alice, bob = client_of(address), client_of(address, "sk_test_bob")
        keyed = {"idempotency_key": "order-1"}
        one, again = (alice.v1.payment_intents.create(PARAMS, keyed) for _ in range(2))
        other = bob.v1.payment_intents.create(PARAMS, keyed)
        assert one.to_dict() == again.to_dict()
        assert one.id != other.id
        with pytest.raises(stripe.StripeError) as caught:
            alice.v1.payment_intents.create({**PARAMS, "amount": 501}, keyed)
        assert caught.value.http_status == 422
        for _ in range(2):
            with pytest.raises(stripe.CardError) as declined:
                alice.v1.payment_intents.create(
                    {**PARAMS, "amount": 2000}, {"idempotency_key": "order-2"}
                )
            assert declined.value.code == "card_declined"
        without = [alice.v1.payment_intents.create(PARAMS).id for _ in range(2)]
    assert without[0] != without[1]
    assert count(connection, "Charged") == 4
