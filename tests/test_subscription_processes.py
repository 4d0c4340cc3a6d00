"""Consumers of subscribed categories as processes: started, killed, in groups, and looked at."""

import json
import os
import signal
import time
from collections import Counter
from contextlib import ExitStack

import pytest

from consumers.group.inspection.stored_positions import is_drained
from reservation import Write
from tests.orders import APP, PAYMENTS, ROOT, Failed, Place, capture, passes, payments_of
from tests.pages import blocks
from tests.processes import PATIENCE, Started, run_cli

PAGE = ROOT / "docs/how-to/follow-other-components.md"


def start(database_url, *arguments, env=()):
    return Started(
        database_url,
        *("--app-dir", str(ROOT), *arguments),
        app=APP,
        env={**os.environ, **dict(env)},
    )


def follow(connection, started, category=PAYMENTS, consumer="order"):
    """Wait until a category is handled to its end, also where nothing is left to be logged."""
    deadline = time.monotonic() + PATIENCE
    while not is_drained(connection, consumer, category):
        assert started.process.poll() is None, started.log
        assert time.monotonic() < deadline, started.lines
        time.sleep(0.02)


def reservation(database_url, *arguments):
    """Run a command about orders, and return what it printed as JSON."""
    done = run_cli(*arguments, "--json", env={"RESERVATION_DATABASE_URL": database_url}, cwd=ROOT)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)


@pytest.mark.check
def test_start_runs_a_consumer_for_each_subscribed_category(connection, store, database_url):
    """Each handles its category, and the commands about consumers know it."""
    where = ["--app-dir", str(ROOT)]
    store.write(Place("o9"), "order:command-o9")
    store.write_batch([capture("p1"), capture("p2", "o2", amount=13), capture("p3", "o2")])
    with start(database_url) as started:
        for category in ("order:command", PAYMENTS):
            started.wait_for("consumer_started", category=category)
        started.wait_for("message_dead", category=PAYMENTS)
        follow(connection, started)
        follow(connection, started, "order:command")
        seen = reservation(database_url, "status", APP, *where)["partitions"]
        assert started.stop() == 0
    assert payments_of(store) == ["p1"]
    shown = {one["category"]: (one["lagMessages"], one["dead"], one["parked"]) for one in seen}
    assert shown == {"order:command": (0, 0, 0), PAYMENTS: (0, 1, 1)}
    listed = reservation(database_url, "dead-letters", "list", "--category", PAYMENTS)
    assert [one["entity"] for one in listed["deadLetters"]] == ["order-o2", "order-o2"]
    positions = reservation(database_url, "positions", "list", APP, *where)["positions"]
    assert {one["category"] for one in positions} == {"order:command", PAYMENTS}


@pytest.mark.parametrize("only", ["subscribed", PAYMENTS])
def test_only_the_subscribed_categories_can_be_run(connection, store, database_url, only):
    """Commands are left to another process."""
    store.write(Place("o1"), "order:command-o1")
    store.write_batch([capture("p1")])
    with start(database_url, "--only", only) as started:
        follow(connection, started)
        assert started.stop() == 0
    assert [message.type for message in store.read_stream("order-o1")] == ["Paid"]


def test_what_is_not_there_cannot_be_run_alone(database_url):
    """The error says what the component has."""
    for only, said in [
        ("reserved", "has no reservation category"),
        ("bill", "nor a category that the component 'order' reads: order:command, payment"),
    ]:
        with start(database_url, "--only", only) as started:
            assert started.process.wait(60) == 2
            assert said in " ".join(started.log.split())


def test_a_message_that_kills_its_consumer_takes_effect_once(
    connection, store, database_url, tmp_path
):
    """The consumer is started again, and everything is handled, once."""
    kills = tmp_path / "kills"
    kills.touch()
    store.write_batch(
        [capture("p1"), capture("p2", amount=0), capture("p3", amount=99), capture("p4", amount=1)]
    )
    with start(database_url, env={"KILLS": str(kills)}) as started:
        started.wait_for("consumer_died", category=PAYMENTS)
        follow(connection, started)
        assert started.stop() == 0
    assert payments_of(store) == ["p1", "p3"]
    assert passes(connection) == [("p2", "nothing"), ("p4", "written")]
    assert len(list(store.read_category("shipping:command"))) == 1


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [[], pytest.param(["--workers", "2", "--partitions", "5"], marks=pytest.mark.long)],
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


@pytest.mark.faults
@pytest.mark.long
def test_the_process_manager_of_the_guide_survives_kills(
    connection, store, database_url, tmp_path, monkeypatch
):
    """Each order ends confirmed or canceled, and is charged and refunded once."""
    for block in blocks(PAGE, "python"):
        header = block.text.partition("\n")[0]
        if header.startswith("# "):
            (tmp_path / header.removeprefix("# ")).write_text(block.text)
    (tmp_path / "send.py").write_text(
        "import os\nfrom ordering import Place\nfrom reservation import MessageStore, connect\n"
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
