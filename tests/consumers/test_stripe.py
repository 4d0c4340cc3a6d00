"""Stripe's own client library, which sends its own keys, pointed at ``reservation.http``."""

import pytest
import stripe

from tests.apps.charges import CHARGED, PARAMS, app, charges, client_of
from tests.apps.http_app import consuming, serving


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
    assert connection.execute(CHARGED).fetchone() == (4,)
