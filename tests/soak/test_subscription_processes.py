"""Consumers of subscribed categories as processes that are killed, alone and in groups."""

import os
import signal
import time
from collections import Counter
from contextlib import ExitStack

import pytest

from reservation import Write
from tests.apps.orders import APP, PAYMENTS, ROOT, Failed, capture, passes, payments_of
from tests.support.pages import blocks
from tests.support.started import PATIENCE, Started

PAGE = ROOT / "docs/how-to/follow-other-components.md"


def start(database_url, *arguments, env=()):
    return Started(
        database_url,
        *("--app-dir", str(ROOT), *arguments),
        app=APP,
        env={**os.environ, **dict(env)},
    )


def follow(connection, started, category=PAYMENTS):
    """Wait until every message of a category is read."""
    deadline = time.monotonic() + PATIENCE
    unread = (
        "SELECT FROM message_store.messages WHERE message_store.category(stream_name) = %(of)s "
        "AND global_position > (SELECT min(position) FROM reservation.positions "
        "WHERE category = %(of)s)"
    )
    while connection.execute(unread, {"of": category}).fetchall():
        assert started.process.poll() is None, started.log
        assert time.monotonic() < deadline, started.lines
        time.sleep(0.02)


@pytest.mark.parametrize(
    "arguments",
    [[], ["--workers", "2", "--partitions", "5"]],
    ids=["alone", "as a group"],
)
def test_killed_consumers_lose_and_repeat_nothing(connection, store, database_url, arguments):
    """Whole process groups are killed again and again while they handle a category."""
    writes = [
        Write(Failed(f"p{n}", f"o{n % 7}"), f"payment-p{n}")
        if n % 5 == 4
        else capture(f"p{n}", f"o{n % 7}", amount=(0, 1, 10)[n % 3])
        for n in range(400)
    ]
    store.write_batch(writes[:100])
    for n in range(100, 400, 75):
        store.write_batch(writes[n : n + 40])  # all before may be handled by now
        with start(
            database_url, "--only", "subscribed", "--batch-size", "7", *arguments
        ) as started:
            started.wait_for("batch_committed", category=PAYMENTS)
            store.write_batch(writes[n + 40 : n + 75])
            started.wait_for("batch_committed", category=PAYMENTS)
            started.stop_group(signal.SIGKILL)
    with start(database_url, "--only", "subscribed", *arguments) as started:
        follow(connection, started)
        assert started.stop() == 0
    events = Counter(payment for n in range(7) for payment in payments_of(store, f"o{n}"))
    recorded = Counter(payment for payment, _ in passes(connection))
    taken = [n for n in range(400) if n % 5 != 4]
    assert events == Counter(f"p{n}" for n in taken if n % 3 == 2)
    assert recorded == Counter(f"p{n}" for n in taken if n % 3 != 2)
    commands = list(store.read_category("shipping:command"))
    assert len(commands) == sum(n % 3 == 1 for n in taken)


def test_the_process_manager_of_the_guide_survives_kills(
    connection, store, database_url, tmp_path, monkeypatch
):
    """Each order ends confirmed or canceled, and is charged and refunded once."""
    for block in blocks(PAGE, "python"):
        header = block.text.partition("\n")[0]
        if header.startswith("# "):
            (tmp_path / header.removeprefix("# ")).write_text(block.text)
    (tmp_path / "send.py").write_text(
        "import os\nfrom ordering import Place\nfrom psycopg import connect\n"
        "from reservation import MessageStore\n"
        "with connect(os.environ['RESERVATION_DATABASE_URL'], autocommit=True) as connection:\n"
        "    for n in range(40):\n"
        "        article = 'moon' if n % 2 else 'book'\n"
        "        MessageStore(connection).write(Place(str(n), article, n), f'order:command-{n}')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("RESERVATION_DATABASE_URL", database_url)
    exec((tmp_path / "send.py").read_text(), {})

    def run(app):
        return Started(
            database_url, "--app-dir", str(tmp_path), "--batch-size", "3", app=app, cwd=tmp_path
        )

    def ended():
        return connection.execute(
            "SELECT count(*) FROM message_store.messages "
            "WHERE category(stream_name) = 'order' AND type IN ('Confirmed', 'Canceled')"
        ).fetchone()[0]

    connection.execute("SET search_path = message_store, public")
    with ExitStack() as parties:
        others = [parties.enter_context(run(app)) for app in ("parties:payments", "parties:stock")]
        for _ in range(3):
            with run("ordering:orders") as started:
                started.wait_for("batch_committed")
                started.stop_group(signal.SIGKILL)
        with run("ordering:orders") as started:
            while ended() < 40:
                started.wait_for("batch_committed")
            assert started.stop() == 0
        assert [other.stop() for other in others] == [0, 0]
    for n in range(40):
        types = [message.type for message in store.read_stream(f"order-{n}")]
        rest = ["Abandoned", "Canceled"] if n % 2 else ["Confirmed"]
        assert types == ["Placed", "Paid", *rest]
    counts = Counter(message.type for message in store.read_category("payment"))
    assert counts == {"Charged": 40, "Refunded": 20}
