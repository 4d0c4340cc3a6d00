"""Stripe's own client, whose server is killed; `tests/consumers/test_stripe.py` has the rest."""

import threading

from tests.apps.charges import CHARGED, PARAMS, app, charges, client_of
from tests.apps.http_app import PATIENCE, Server, consuming
from tests.support.consuming import until
from tests.support.ports import free_port

SENT = "SELECT count(*) FROM message_store.messages WHERE stream_name LIKE %s"
COMMANDS = "charge:command-%"


def test_the_retry_of_stripes_client_is_answered_when_a_server_was_killed(database_url, connection):
    """A server dies after the commit; the client retries by itself with its key, charged once."""
    port, results = free_port(), []
    with Server(app, port, database_url=database_url) as first:
        client = client_of(first.address)
        calling = threading.Thread(
            target=lambda: results.append(client.v1.payment_intents.create(PARAMS))
        )
        calling.start()
        until(lambda: connection.execute(SENT, [COMMANDS]).fetchone() == (1,))
        first.kill()
    with Server(app, port, database_url=database_url), consuming(database_url, charges):
        calling.join(PATIENCE)
    (intent,) = results
    assert (intent.amount, intent.object) == (500, "payment_intent")
    assert connection.execute(SENT, [COMMANDS]).fetchone() == (1,)
    assert connection.execute(CHARGED).fetchone() == (1,)
    rows = "SELECT count(*), count(status) FROM reservation.http_requests"
    assert connection.execute(rows).fetchone() == (1, 1)
