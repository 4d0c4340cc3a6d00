"""The pages *overview* and *consumers*, as a program sees them."""

import re
from datetime import UTC

import pytest
from psycopg import connect, conninfo, sql
from starlette.testclient import TestClient

from reservation import MessageStore
from tests.console.conftest import built, signed_in
from tests.console.filling import letters, place
from tests.console.trade import Place, orders, payments


def text(html):
    """Return what a page says, without its markup."""
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def flows(html):
    """Return the stages of each component on the overview, each as its title and its category."""
    articles = re.findall(r"<article.*?</article>", html, re.DOTALL)
    stages = r"<h3>(.*?)</h3>\s*<p class=\"name\">(.*?)</p>"
    return [[tuple(map(text, one)) for one in re.findall(stages, article)] for article in articles]


@pytest.mark.parametrize(
    "components", [(orders, payments), ()], ids=["declared", "as the store knows it"]
)
def test_a_component_is_a_flow_from_command_to_effect(seen_url, components):
    """Names and causes in the store are enough to draw what the declaration says."""
    with TestClient(built(seen_url, components=components)) as client:
        order, payment = flows(signed_in(client).get("/").text)
    assert order == [
        ("Commands", "order:command"),
        ("Messages of others", "payment"),
        ("Events", "order"),
    ]
    assert payment == [
        ("Commands", "payment:command"),
        ("Reservations", "paymentTransaction"),
        ("Events", "payment"),
        ("Readers", "order"),
    ]


def test_the_flow_shows_what_is_behind_and_what_failed(client):
    """The figures are those of the consumers' own status."""
    page = client.get("/").text
    assert "3 unread nobody reads it Oldest unread" in text(page)
    assert "Dead letters 1 Parked behind 2 Waiting to retry 1" in text(page)
    assert 'href="/dead-letters?consumer=payment&amp;category=paymentTransaction"' in page


def test_a_breaker_that_is_open_is_named_where_messages_wait(filled_url):
    """With since when and why; one that is closed is not shown."""
    with connect(filled_url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO reservation.breakers (consumer, category, type, types, opened_at, until,"
            " error_type) VALUES ('payment', 'paymentTransaction', 'Capture', '{Capture}',"
            " '2026-01-02 03:04:05Z', now(), 'requests.HTTPError'),"
            " ('payment', 'paymentTransaction', 'Refund', '{Refund}', NULL, NULL, NULL)"
        )
    with TestClient(built(filled_url)) as client:
        page = text(signed_in(client).get("/").text)
    assert "breaker open: Capture since 2026-01-02 03:04:05 after requests.HTTPError" in page
    assert page.count("breaker open") == 1


def test_rates_are_those_of_the_last_minute(filled_url):
    """What is older does not count."""
    with connect(filled_url, autocommit=True) as connection:
        connection.execute("UPDATE message_store.messages SET time = time - interval '1 hour'")
        store = MessageStore(connection)
        for number in range(30):
            place(store, f"o-new-{number}", "anna", 1)
    with TestClient(built(filled_url)) as client:
        page = text(signed_in(client).get("/").text)
    assert "order:command 0.5 messages/s" in page
    assert "Events order 0 messages/s" in page
    assert "payment:command 0 messages/s" in page


def test_a_component_that_was_never_run_is_shown_as_declared(database_url):
    """Its name is enough to watch its first commands arrive."""
    with TestClient(built(database_url, components=[payments])) as client:
        page = signed_in(client).get("/").text
    ((commands, copies, _),) = flows(page)
    assert (commands[1], copies[1]) == ("payment:command", "paymentTransaction")
    assert "never run" in page


def test_a_command_category_that_nobody_reads_is_named(store, database_url):
    """A misspelled category is named on the page of the consumers."""
    store.write(Place("1", "smith", 900), "orders:command-1")
    with TestClient(built(database_url)) as client:
        page = signed_in(client).get("/consumers").text
    assert "orders:command holds 1 message, and no consumer has a position in it" in text(page)


def test_an_empty_store_says_what_to_do(database_url):
    """A newcomer is not left with an empty page."""
    with TestClient(built(database_url, components=())) as client:
        signed_in(client)
        assert "No consumer was ever run on this store" in client.get("/").text
        assert "No consumer was ever run on this store" in client.get("/consumers").text


def test_consumers_show_partitions_and_what_waits(seen_url, client):
    """Each partition with its next attempt, and each message that waits."""
    page = client.get("/consumers").text
    headings = re.findall(r"<h2 id=\"group.*?</h2>", page, re.DOTALL)
    assert [text(one) for one in headings] == [
        "order reads order:command",
        "order reads payment",
        "payment reads payment:command",
        "payment reads paymentTransaction",
    ]
    with connect(seen_url) as connection:
        (waiting,) = letters(connection, entity="payment-waiting")
    due = waiting.next_attempt_at.astimezone(UTC).isoformat(timespec="milliseconds")
    assert page.count(due) == 2  # of its partition, and of the message
    assert "Capture payment 1" in text(page)
    assert '<a class="name" href="/story?q=paymentTransaction-waiting%2Bo-waiting/1">' in page


def test_consumers_show_the_processes_that_hold_partitions(filled_url):
    """With the age of their last heartbeat; one whose session has ended is gone."""
    with connect(filled_url, autocommit=True) as connection:
        connection.execute(
            "WITH joined AS ("
            " INSERT INTO reservation.members (consumer, category, process, worker)"
            " VALUES ('order', 'payment', 'host <b>7</b>', 'w') RETURNING member),"
            " lease AS (INSERT INTO reservation.heartbeats (member, expires_at)"
            " SELECT member, now() + interval '1 s' FROM joined)"
            " UPDATE reservation.leases SET holder = member FROM joined"
            " WHERE (consumer, category) = ('order', 'payment')"
        )
    with TestClient(built(filled_url)) as client:
        page = signed_in(client).get("/consumers").text
    assert re.search(r"host &lt;b&gt;7&lt;/b&gt; partition 0 gone \d\.\d s ago", text(page))
    assert "<b>7" not in page


def test_a_position_of_another_log_is_named(filled_url):
    """It looks like no lag."""
    with connect(filled_url, autocommit=True) as connection:
        connection.execute("UPDATE reservation.moves SET message_id = gen_random_uuid()")
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
        connection.execute("DELETE FROM reservation.leases")
