"""The pages *overview* and *consumers*, as a program sees them."""

import re

import pytest
from psycopg import conninfo, sql
from starlette.testclient import TestClient

from cli.console.reading.consumers import read_consumers
from cli.console.reading.flow import read_overview
from reservation import MessageStore
from reservation.postgres.connection import connect
from tests.console.conftest import built, signed_in
from tests.console.filling import place
from tests.console.trade import orders, payments

BOTH = {"order": orders, "payment": payments}


@pytest.fixture
def seen(seen_url):
    """Give a connection to the filled store."""
    with connect(seen_url, autocommit=True) as connection:
        yield connection


def text(html):
    """Return what a page says, without its markup."""
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


@pytest.mark.parametrize("declared", [BOTH, {}], ids=["declared", "as the store knows it"])
def test_a_component_is_a_flow_from_command_to_effect(seen, declared):
    """Names and causes in the store are enough to draw what the declaration says."""
    order, payment = read_overview(seen, declared).flows
    assert order.commands.category == "order:command"
    assert [stage.category for stage in order.subscriptions] == ["payment"]
    assert order.copies == []
    assert [one.category for one in order.onward] == ["payment:command"]
    assert payment.commands.category == "payment:command"
    assert [stage.category for stage in payment.copies] == ["paymentTransaction"]
    assert [(one.category, one.readers) for one in payment.onward] == [("payment", ["order"])]
    assert payment.onward[0].of_events


def test_the_flow_shows_what_is_behind_and_what_failed(seen, client):
    """The figures are those of the consumers' own status."""
    order, payment = read_overview(seen, BOTH).flows
    assert order.commands.summary.lag.messages == 3
    copies = payment.copies[0].summary
    assert (copies.dead, copies.parked, copies.waiting) == (1, 2, 1)
    page = client.get("/").text
    assert "3 unread nobody reads it Oldest unread" in text(page)
    assert 'href="/dead-letters?consumer=payment&amp;category=paymentTransaction"' in page


def test_rates_are_those_of_the_last_minute(filled_url):
    """What is older does not count."""
    with connect(filled_url, autocommit=True) as connection:
        connection.execute("UPDATE message_store.messages SET time = time - interval '1 hour'")
        store = MessageStore(connection)
        for number in range(30):
            place(store, f"o-new-{number}", "anna", 1)
        order, payment = read_overview(connection, BOTH).flows
    assert order.commands.traffic.rate == pytest.approx(0.5)
    assert (order.events.rate, payment.commands.traffic.rate) == (0, 0)


def test_a_component_that_was_never_run_is_shown_as_declared(database_url, connection):
    """Its name is enough to watch its first commands arrive."""
    (flow,) = read_overview(connection, {"payment": payments}).flows
    assert [stage.category for stage in flow.stages] == ["payment:command", "paymentTransaction"]
    assert flow.commands.summary.updated_at is None
    with TestClient(built(database_url)) as client:
        assert "never run" in signed_in(client).get("/").text


def test_an_empty_store_says_what_to_do(database_url):
    """A newcomer is not left with an empty page."""
    with TestClient(built(database_url, components=())) as client:
        signed_in(client)
        assert "No consumer was ever run on this store" in client.get("/").text
        assert "No consumer was ever run on this store" in client.get("/consumers").text


def test_consumers_show_partitions_and_what_waits(seen, client):
    """Each partition with its epoch and its next attempt, and each message that waits."""
    found = read_consumers(seen, BOTH.values())
    assert [(group.consumer, group.category) for group in found.groups] == [
        ("order", "order:command"),
        ("order", "payment"),
        ("payment", "payment:command"),
        ("payment", "paymentTransaction"),
    ]
    (waiting,) = found.waiting
    assert (waiting.type, waiting.attempts) == ("Capture", 1)
    assert waiting.next_attempt_at == found.groups[3].partitions[0].next_attempt_at
    page = client.get("/consumers").text
    assert '<a class="name" href="/story?q=paymentTransaction-waiting%2Bo-waiting/1">' in page


def test_consumers_show_the_processes_that_hold_partitions(filled_url):
    """With the age of their last heartbeat; one whose session has ended is gone."""
    with connect(filled_url, autocommit=True) as connection:
        connection.execute(
            "WITH joined AS ("
            " INSERT INTO reservation.members (consumer, category, process, expires_at)"
            " VALUES ('order', 'payment', 'host <b>7</b>', now() + interval '1 s')"
            " RETURNING member)"
            " UPDATE reservation.positions SET holder = member FROM joined"
            " WHERE (consumer, category) = ('order', 'payment')"
        )
        group = read_consumers(connection).groups[1]
    (member,) = group.members
    assert (member.process, list(member.held), member.gone) == ("host <b>7</b>", [0], True)
    assert member.beat >= 2
    with TestClient(built(filled_url)) as client:
        page = signed_in(client).get("/consumers").text
    assert "host &lt;b&gt;7&lt;/b&gt;" in page
    assert "<b>7" not in page


def test_a_position_of_another_log_is_named(filled_url):
    """It looks like no lag."""
    with connect(filled_url, autocommit=True) as connection:
        connection.execute("UPDATE reservation.positions SET message_id = gen_random_uuid()")
    with TestClient(built(filled_url)) as client:
        signed_in(client)
        assert "position of another log" in client.get("/").text
        assert "position of another log" in client.get("/consumers").text


def test_a_database_that_goes_away_is_waited_for(admin, filled_url, monkeypatch):
    """The page says so, and the next one works once it is back."""
    monkeypatch.setattr("cli.console.reading.database.PATIENCE", 0.5)
    name = sql.Identifier(str(conninfo.conninfo_to_dict(filled_url)["dbname"]))
    with TestClient(built(filled_url)) as client:
        signed_in(client)
        assert client.get("/").status_code == 200
        admin.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(name))
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
            [conninfo.conninfo_to_dict(filled_url)["dbname"]],
        )
        for _ in range(2):
            answer = client.get("/")
            assert answer.status_code == 503
            assert "The database cannot be reached" in answer.text
            assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        admin.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(name))
        assert any(client.get("/").status_code == 200 for _ in range(60))


def test_pages_only_read(filled_url, client):
    """A page that wrote would fail: the transaction refuses it, whatever the role may do."""
    console = client.app._app.state.console
    with pytest.raises(Exception, match="read-only"), console.reading() as connection:
        connection.execute("DELETE FROM reservation.positions")
