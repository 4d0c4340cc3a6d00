"""``reservation prune``: what is no longer needed is removed, and nothing else."""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from psycopg import connect

from bank.messages import Deposit
from reservation import Component, Key
from reservation.strategies import Processed
from tests.apps.bank import RESERVED, drain
from tests.apps.once import SENT, effects, pay, prepare, till
from tests.support.commands import invoke_cli
from tests.support.consuming import until
from tests.support.controls import COMMANDS, deposit, open_
from tests.support.stored_positions import store_position

OLD = ["bank:account", "--reservations-older-than", "90d"]


@pytest.fixture
def cli(database_url):
    """Give a function that runs the command to its end."""

    def prune(*arguments):
        return invoke_cli(
            "prune", *arguments, env={"RESERVATION_DATABASE_URL": database_url, "COLUMNS": "200"}
        )

    return prune


@pytest.fixture
def prune(cli):
    """Give a function that removes old reservations, and returns how many streams went."""

    def run(*options, app="bank:account"):
        done = cli(app, *OLD[1:], *options, "--json")
        assert done.returncode == 0, done.stderr
        return sum(one["count"] for one in json.loads(done.stdout)["pruned"])

    return run


def age(connection, stream_name, days, *, key=None):
    """Have messages stored some days ago: those of a stream, or of a key in it."""
    connection.execute(
        "UPDATE message_store.messages SET time = (now() AT TIME ZONE 'utc') "
        "- make_interval(days => %s) "
        "WHERE stream_name LIKE %s AND (%s::text IS NULL OR data->>'payId' = %s)",
        [days, stream_name, key, key],
    )


def add_letters(connection, state, stream_name, consumer="account", category=RESERVED):
    """Make dead letters of the messages of streams."""
    connection.execute(
        "INSERT INTO reservation.dead_letters (consumer, category, global_position, "
        "message_id, stream_name, type, state, reason, process) "
        "SELECT %s, %s, global_position, id, stream_name, type, %s, 'x', 'x' "
        "FROM message_store.messages WHERE stream_name LIKE %s",
        [consumer, category, state, stream_name],
    )


def move(connection, position, category=RESERVED):
    """Let a consumer have read a category up to a position."""
    connection.execute(
        "UPDATE reservation.moves SET position = %s WHERE category = %s", [position, category]
    )


def add_position(connection, consumer, partition, position):
    """Let a partition of the reservations have been read up to a position."""
    store_position(connection, consumer, RESERVED, position, partition)


def reserved(store):
    """Return the keys that are reserved."""
    return [m.stream_name.partition("+")[2] for m in store.read_category(RESERVED)]


def handle(connection, store, keys):
    """Have an account opened and deposits with these keys handled."""
    store.write([open_(), *(deposit(key) for key in keys)], COMMANDS)
    drain(connection)


# Processed messages


def daily(name="till"):
    """Return a component that keeps a day of processed messages."""
    return till(Processed(keep=timedelta(days=1)), name=name)


def since_long_ago(connection, consumer):
    """Let a handler have kept a day for a long time, so that each day has a partition."""
    connection.execute(
        "INSERT INTO reservation.processed_handlers (consumer, type, keep, since) "
        "VALUES (%s, 'Pay', '1 day', (now() AT TIME ZONE 'utc')::date - 100)",
        [consumer],
    )


@pytest.fixture
def processed(connection, store):
    """Have a handler that keeps a day of messages process some of the last five days."""
    prepare(connection)
    since_long_ago(connection, "till")
    for days in range(5):
        store.write(pay(str(days)), SENT)
        age(connection, SENT, days, key=str(days))
    drain(connection, daily())


def count_processed(connection):
    query = "SELECT count(*) FROM reservation.processed_messages"
    return connection.execute(query).fetchone()[0]


def count_partitions(connection):
    query = (
        "SELECT count(*) FROM pg_inherits "
        "WHERE inhparent = 'reservation.processed_for_a_time'::regclass"
    )
    return connection.execute(query).fetchone()[0]


@pytest.mark.usefixtures("processed")
def test_nothing_is_removed_without_apply(connection, cli):
    """The output says what would be."""
    before = count_partitions(connection)
    printed = cli()
    assert printed.returncode == 0, printed.stderr
    assert printed.stdout == (
        "processed messages of till Pay: 3 days would be removed\n"
        "Nothing is changed; remove it with --apply.\n"
    )
    assert (count_processed(connection), count_partitions(connection)) == (5, before)
    done = cli("--apply", "--json")
    pruned = [{"kind": "processed messages", "of": "till Pay", "count": 3, "unit": "days"}]
    assert json.loads(done.stdout) == {"applied": True, "pruned": pruned, "kept": []}
    assert count_processed(connection) == 2
    assert cli("--apply").stdout == "Nothing was to be removed.\n"
    assert cli("--json").stdout == '{"applied": false, "pruned": [], "kept": []}\n'


@pytest.mark.usefixtures("processed")
def test_days_of_every_handler_are_listed(connection, store, cli):
    """Those without days are not."""
    connection.execute(
        "INSERT INTO reservation.processed_handlers (consumer, type, keep, since) "
        "VALUES ('a', 'None', '1 day', now()), ('z', 'None', '1 day', now())"
    )
    since_long_ago(connection, "other")
    store.write(pay("o"), "other:command-1")
    age(connection, "other:command-1", 3)
    drain(connection, daily("other"))
    found = json.loads(cli("--json").stdout)["pruned"]
    assert {one["of"]: one["count"] for one in found} == {"other Pay": 1, "till Pay": 3}


@pytest.mark.usefixtures("processed")
def test_a_day_that_is_in_use_for_a_moment_is_dropped(connection, database_url, cli):
    """It is waited for."""
    waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with connect(database_url) as busy, ThreadPoolExecutor() as executor:
        busy.execute("SELECT FROM reservation.processed_for_a_time")
        done = executor.submit(cli, "--apply", "--json")
        until(lambda: connection.execute(waiting).fetchall())
        busy.rollback()
        (pruned,) = json.loads(done.result().stdout)["pruned"]
    assert pruned["count"] == 3


@pytest.mark.usefixtures("processed")
def test_progress_is_printed_with_what_stays_and_why(connection, store, cli):
    """A day that has a message which nobody has handled stays, and so do later ones."""
    store.write(pay("late"), SENT)
    age(connection, SENT, 3, key="late")
    done = cli("--apply")
    assert done.stderr == "processed messages of till Pay: 1 day\n"
    removed, stays = done.stdout.splitlines()
    assert removed == "processed messages of till Pay: 1 day removed"
    assert stays.endswith("on stays: till has yet to handle messages of then")
    assert len(json.loads(cli("--json").stdout)["kept"]) == 1


@pytest.mark.usefixtures("processed")
def test_messages_of_a_till_take_effect_once_while_it_is_pruned(connection, cli):
    """What is kept is recognized when it is read again."""
    assert cli("--apply").returncode == 0
    connection.execute("UPDATE reservation.moves SET position = 0, message_id = NULL")
    connection.execute("DELETE FROM message_store.messages WHERE data->>'payId' IN ('2', '3', '4')")
    assert drain(connection, daily()).counts == {"duplicate": 2}
    assert effects(connection) == Counter("01234")


# Reservations


def test_reservations_are_removed_only_on_request(connection, store, cli):
    """A note says what reissues do then, and they do."""
    handle(connection, store, "abc")
    for key, days in (("a", 100), ("b", 91), ("c", 89)):
        age(connection, f"%+{key}", days)
    assert cli("--apply").stdout == "Nothing was to be removed.\n"
    printed = cli(*OLD)
    assert "reservations of accountTransaction: 2 streams would be removed" in printed.stdout
    assert "takes effect again" in printed.stderr
    assert reserved(store) == ["a", "b", "c"]
    done = json.loads(cli(*OLD, "--apply", "--batch-size", "1", "--json").stdout)
    assert done["pruned"] == [
        {"kind": "reservations", "of": RESERVED, "count": 2, "unit": "streams"}
    ]
    assert "takes effect again" in done["warning"]
    assert reserved(store) == ["c"]
    store.write([deposit("a"), deposit("c")], COMMANDS)
    assert drain(connection).counts == {"reserved": 1, "handled": 1, "duplicate": 1}


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_unhandled_messages_are_kept(connection, store, prune, limit):
    """Unhandled messages and those of dead letters are kept, whatever their age."""
    handle(connection, store, "abcde")
    age(connection, f"{RESERVED}-%", 100)
    apply = ["--apply", "--batch-size", str(limit)]
    move(connection, 0)
    assert prune(*apply) == 0
    at = "SELECT global_position FROM message_store.messages WHERE stream_name LIKE '%+d'"
    move(connection, *connection.execute(at).fetchone())
    add_letters(connection, "parked", "%+a")
    add_letters(connection, "handled", "%+b")
    assert prune(*apply) == 2
    assert reserved(store) == ["a", "d", "e"]


def test_a_stream_is_pruned_as_a_whole_or_not_at_all(connection, store, prune):
    """A stream with a young or unread message is kept as a whole."""
    handle(connection, store, "ab")
    for key in "az":
        store.write(deposit(key), f"{RESERVED}-123+{key}")
    connection.execute(
        "UPDATE message_store.messages SET time = time - interval '100 days' WHERE position = 0"
    )
    move(connection, 10)  # where z is
    assert prune("--apply") == 1
    assert prune("--apply") == 0
    age(connection, "%+a", 100)
    move(connection, 5)
    assert prune("--apply") == 0
    move(connection, 10)
    assert prune("--apply") == 1
    assert reserved(store) == ["z"]


def test_in_a_group_the_partition_furthest_behind_decides(connection, store, prune):
    """The others may have read further."""
    handle(connection, store, "az")
    age(connection, "%+a", 100)
    add_position(connection, "account", 1, 0)
    assert prune("--apply") == 0


other = Component("savings", id="account_id")
other.handle(Deposit, key=Key("deposit_id", into=RESERVED))(lambda *_: None)


def test_reservations_that_no_consumer_has_read_are_kept(connection, store, prune):
    """Those of another component, or from before the first start."""
    for key in "az":
        store.write(deposit(key), f"{RESERVED}-123+{key}")
    age(connection, "%+a", 100)
    savings = f"{__name__}:other"
    assert prune("--apply") == 0
    assert prune("--apply", app=savings) == 0
    drain(connection)
    assert prune("--apply", app=savings) == 0
    add_position(connection, "savings", 0, 0)
    assert prune("--apply", app=savings) == 0
    assert prune("--apply") == 1


def test_a_dry_run_counts_each_stream_once(connection, store, prune):
    """However small its batches."""
    handle(connection, store, "abcde")
    assert prune("--batch-size", "1") == 0
    age(connection, f"{RESERVED}-%", 100)
    found = {limit: prune("--batch-size", limit) for limit in ("1", "2", "4")}
    assert found == {"1": 4, "2": 4, "4": 4}
    assert reserved(store) == [*"abcde"]


@pytest.mark.parametrize(
    ("consumer", "category"), [("savings", RESERVED), ("account", "account:command")]
)
def test_dead_letters_of_others_keep_nothing(connection, store, prune, consumer, category):
    """Of another consumer or category."""
    handle(connection, store, "az")
    age(connection, "%+a", 100)
    add_letters(connection, "dead", f"{RESERVED}-%", consumer, category)
    assert prune("--apply") == 1


def test_the_first_message_of_all_can_be_pruned(connection, store, prune):
    """A copy that is the first message of the store."""
    for key in "az":
        store.write(deposit(key), f"{RESERVED}-123+{key}")
    add_position(connection, "account", 0, 2)
    age(connection, "%+a", 100)
    assert prune("--apply") == 1


def test_pruning_waits_for_no_consumer(connection, store, database_url, prune):
    """That is writing meanwhile."""
    handle(connection, store, "az")
    age(connection, "%+a", 100)
    with connect(database_url) as busy:
        busy.execute(
            "SELECT reservation.lock_categories(ARRAY['account-1', %s])", [f"{RESERVED}-1"]
        )
        busy.execute("SELECT FROM reservation.leases FOR UPDATE")
        assert prune("--apply") == 1


# Options


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["bank:account"], None),
        (OLD[1:], "--reservations-older-than needs APP, such as bank:a"),
        ([*OLD[:2], "90"], "'90' is not a time span; write a number"),
        ([*OLD[:2], "0d"], "'0d' is out of range; write a time span from 1h"),
        ([*OLD[:2], "99999d"], None),
        ([*OLD[:2], "36h"], None),
        (["--archived", "."], "--archived needs APP"),
        (["bank:account", "--archived", "."], "There is no archive in "),
    ],
)
def test_invalid_options_are_refused(cli, arguments, problem):
    """In one line; ages and combinations of options that are valid find nothing to do."""
    done = cli(*arguments)
    assert done.returncode == (2 if problem else 0), done.stderr
    assert (problem or "Nothing is to be removed.") in done.stderr + done.stdout
    assert not problem or done.stderr.splitlines()[-1].startswith("Error: ")
