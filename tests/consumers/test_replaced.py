"""A store that was cleared, restored or replaced is recognized, and no message is passed over."""

import json
import re
import subprocess
from itertools import islice

import psycopg
import pytest

import consumers
from bank import account
from reservation import MessageStore
from reservation.errors import StoreReplacedError
from reservation.strategies import Processed, Revisions
from tests.apps.bank import RESERVED, broken, drain, event_types
from tests.apps.idempotence import PURSE, purse
from tests.apps.once import SENT, effects, pay, prepare, till
from tests.support.commands import invoke_cli
from tests.support.consuming import hosted, until
from tests.support.controls import COMMANDS as STREAM
from tests.support.controls import deposit, open_
from tests.support.servers import programs

COMMANDS = "account:command"
TRUNCATE = "TRUNCATE message_store.messages RESTART IDENTITY"
NEW = 30


@pytest.fixture
def reservation(database_url):
    """Give the command line on the test's database."""

    def run(*arguments, status=0):
        env = {"RESERVATION_DATABASE_URL": database_url, "COLUMNS": "200"}
        done = invoke_cli(*arguments, env=env)
        assert done.returncode == status, done.stderr
        return json.loads(done.stdout) if "--json" in arguments and status == 0 else done

    return run


def handle_some(connection, store, count=3):
    """Have an account with deposits, all of which are handled."""
    store.write([open_(), *(deposit(f"old{n}", "1") for n in range(count))], STREAM)
    drain(connection)


def new_log(connection, store, count=NEW):
    """Clear the store as Message DB's clear-messages does, and store new commands at once."""
    with connection.transaction():
        connection.execute(TRUNCATE)
        store.write([open_(), *(deposit(f"new{n}", "1") for n in range(count - 1))], STREAM)


def deposits(store):
    """Return how many deposits an account has."""
    return event_types(store).count("Deposited")


def positions(connection):
    """Return the stored positions by category, with the id of the message there."""
    rows = connection.execute(
        "SELECT category, position, message_id::text FROM reservation.positions ORDER BY category"
    )
    return {category: (position, message_id) for category, position, message_id in rows}


def message_at(store, category, position):
    """Return the message of a category that a position stands at."""
    (message,) = islice(store.read_category(category, position=position), 1)
    assert message.global_position == position
    return message


# Cleared


@pytest.mark.parametrize("before", [3, 4 * NEW])
def test_a_consumer_of_a_cleared_store_stops_until_its_positions_are_reset(
    connection, store, reservation, database_url, before
):
    """Whether the new log is longer or shorter, it handles nothing of it, and then all."""
    handle_some(connection, store, before)
    new_log(connection, store)
    stored = positions(connection)
    for call in (consumers.run, consumers.drain):
        with pytest.raises(StoreReplacedError, match=r"not in this store.*positions reset"):
            call(account, database_url)
    assert positions(connection) == stored
    assert event_types(store) == []
    reservation("positions", "reset", "bank:account", "--yes")
    drain(connection)
    assert deposits(store) == NEW - 1
    assert broken(connection) == {}


@pytest.mark.parametrize("before", [3, 4 * NEW])
def test_a_running_consumer_stops_where_the_store_is_cleared(
    connection, store, database_url, before
):
    """No batch of the new log commits on a position in the old one."""
    handle_some(connection, store, before)
    held = "SELECT count(holder) FROM reservation.positions"
    with (  # noqa: PT012  it ends by itself
        pytest.raises(StoreReplacedError, match="not in this store"),
        hosted(account, database_url) as running,
    ):
        until(lambda: connection.execute(held).fetchone() == (2,), running)
        new_log(connection, store)
        until(lambda: not running.is_alive())
    assert event_types(store) == []


def test_a_position_is_stored_with_the_id_of_its_message(connection, store):
    """So is every position, in each category."""
    handle_some(connection, store)
    for category, (position, message_id) in positions(connection).items():
        assert message_at(store, category, position).id == message_id


def test_status_and_positions_show_foreign_positions(connection, store, reservation):
    """They name the command that helps, and count the lag from the beginning."""

    def shown():
        partitions = reservation("status", "--json")["partitions"]
        return {one["category"]: (one["foreign"], one["lagMessages"]) for one in partitions}

    handle_some(connection, store)
    assert shown() == {COMMANDS: (False, 0), RESERVED: (False, 0)}
    new_log(connection, store)
    assert shown() == {COMMANDS: (True, NEW), RESERVED: (True, 0)}
    table = " ".join(reservation("status", "bank:account").stdout.split())
    assert "not of this store" in table
    assert "`reservation positions reset bank:account`" in table
    listed = reservation("positions", "list", "--json")["positions"]
    assert [row["foreign"] for row in listed] == [True, True]


def test_each_partition_recognizes_it(connection, store, reservation, database_url):
    """Positions that were carried over from another number of partitions name messages too."""
    for n in range(8):
        store.write([open_(str(n)), deposit(f"d{n}", account=str(n))], f"{COMMANDS}-{n}")
    reservation("partitions", "bank:account", "4")
    drain(connection)
    named = "SELECT count(*) FROM reservation.positions WHERE message_id IS NULL"
    assert connection.execute(named).fetchone() == (0,)
    # One is far behind, so a change of their number carries the others' positions over.
    connection.execute("UPDATE reservation.moves SET position = 0 WHERE partition = 2")
    reservation("partitions", "bank:account", "2")
    assert not any(one["foreign"] for one in reservation("status", "--json")["partitions"])
    new_log(connection, store)
    line = reservation("partitions", "bank:account", "3", status=2).stderr
    assert "`reservation positions reset bank:account`" in line
    with pytest.raises(StoreReplacedError):
        drain(connection)
    reservation("positions", "reset", "bank:account", "--yes")
    drain(connection)
    assert deposits(store) == NEW - 1


def test_an_imported_position_names_its_message(connection, store, reservation):
    """So what was imported from Eventide is recognized as another log's too."""
    store.write([open_(), *(deposit(f"d{n}") for n in range(4))], STREAM)
    connection.execute(
        "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, 'Recorded', "
        "'{\"position\": 3}')",
        [f"{COMMANDS}+position"],
    )
    reservation("positions", "import", "bank:account", "--category", COMMANDS)
    position, message_id = positions(connection)[COMMANDS]
    assert message_at(store, COMMANDS, position).id == message_id
    new_log(connection, store)
    with pytest.raises(StoreReplacedError):
        drain(connection)


# Snapshots


def test_a_snapshot_from_before_is_not_believed(connection, store):
    """The balance is that of the events; each batch of one loads the entity again."""
    component = purse(snapshot_every=2)
    for amount in ("100", "13"):
        connection.execute(TRUNCATE)
        connection.execute("UPDATE reservation.moves SET position = 0")
        store.write([deposit(f"{amount}-{n}", amount) for n in range(10)], PURSE)
        drain(connection, component, batch_size=1)
        rows = connection.execute(
            "SELECT s.position, s.data->>'balance', s.event_id = m.id FROM reservation.snapshots s "
            "JOIN message_store.messages m USING (stream_name, position)"
        ).fetchall()
        assert [(position, float(total), same) for position, total, same in rows] == [
            (9, 10 * float(amount), True)
        ]


def test_a_snapshot_that_names_no_event_is_replaced(connection, store):
    """It may be of any log."""
    component = purse(snapshot_every=2)
    store.write([deposit(f"a{n}", "1") for n in range(4)], PURSE)
    drain(connection, component)
    connection.execute(
        "UPDATE reservation.snapshots SET event_id = NULL, data = '{\"balance\": 1000}'"
    )
    store.write([deposit(f"b{n}", "1") for n in range(2)], PURSE)
    drain(connection, component)
    found = connection.execute(
        "SELECT data->>'balance', event_id IS NOT NULL FROM reservation.snapshots"
    )
    assert found.fetchall() == [("6", True)]


# Restored


@pytest.fixture
def own_tools(server_url, database_url, tmp_path):
    """Give functions that dump and restore schemas of the test's database."""
    folder = programs(server_url)
    if folder is None:
        pytest.skip("PostgreSQL's programs are not on this machine")
    file = tmp_path / "dump"

    def dump(*schemas):
        names = [f"--schema={schema}" for schema in schemas]
        subprocess.run(
            [folder / "pg_dump", "-Fc", "-f", file, *names, "-d", database_url], check=True
        )

    def restore(*schemas, to=database_url):
        with psycopg.connect(to, autocommit=True) as connection:
            for schema in schemas:
                connection.execute(f"DROP SCHEMA {schema} CASCADE")
                connection.execute(f"CREATE SCHEMA {schema}")
        names = [f"--schema={schema}" for schema in schemas]
        subprocess.run(
            [folder / "pg_restore", *names, "--exit-on-error", "-d", to, file], check=True
        )

    return dump, restore


def test_a_restore_of_the_messages_alone_is_recognized(connection, store, own_tools):
    """The positions are beyond what was restored."""
    handle_some(connection, store)
    dump, restore = own_tools
    dump("message_store")
    store.write([deposit(f"later{n}", "1") for n in range(5)], STREAM)
    drain(connection)
    restore("message_store")
    with pytest.raises(StoreReplacedError):
        drain(connection)


@pytest.mark.parametrize(
    ("schemas", "kept"),
    [(["reservation"], 3 + 5), (["message_store", "reservation"], 3)],
    ids=["positions alone", "both"],
)
def test_a_restore_to_an_earlier_time_repeats_no_effect(
    connection, store, own_tools, schemas, kept
):
    """What is read again is recognized, and what was lost does not come back."""
    handle_some(connection, store)
    dump, restore = own_tools
    dump("message_store", "reservation")
    store.write([deposit(f"later{n}", "1") for n in range(5)], STREAM)
    drain(connection)
    restore(*schemas)
    store.write([deposit(f"again{n}", "1") for n in range(2)], STREAM)
    drain(connection)
    assert deposits(store) == kept + 2
    assert broken(connection) == {}


def test_positions_of_another_store_are_recognized(
    connection, store, make_database, template, own_tools
):
    """Positions that were restored beside messages of another store are foreign."""
    handle_some(connection, store)
    dump, restore = own_tools
    dump("reservation")
    address = make_database(template)
    with psycopg.connect(address, autocommit=True) as other:
        MessageStore(other).write([open_(), *(deposit(f"x{n}") for n in range(50))], STREAM)
        restore("reservation", to=address)
        with pytest.raises(StoreReplacedError):
            drain(other)


# Pruned


def prune(connection, reservation, status=0):
    """Have every message stored long ago, and remove the reservations that may go."""
    connection.execute("UPDATE message_store.messages SET time = time - interval '100 days'")
    older = ("--reservations-older-than", "90d")
    return reservation("prune", "bank:account", *older, "--apply", status=status)


def reservations(connection):
    """Return how many reservations there are."""
    return connection.execute(
        "SELECT count(*) FROM message_store.messages WHERE stream_name LIKE 'accountTransaction-%'"
    ).fetchone()[0]


def test_prune_keeps_the_message_that_a_position_stands_at(connection, store, reservation):
    """It goes once the position has moved."""
    handle_some(connection, store)
    for _ in range(2):
        prune(connection, reservation)
        assert reservations(connection) == 1
    store.write(deposit("later", "1"), STREAM)
    drain(connection)
    assert reservations(connection) == 2
    prune(connection, reservation)
    assert reservations(connection) == 1
    assert deposits(store) == 4


def test_nothing_is_pruned_by_a_position_of_another_log(connection, store, reservation):
    """What the old position has passed is not what was handled."""
    handle_some(connection, store, 50)
    foreign = positions(connection)[RESERVED]
    connection.execute(TRUNCATE)
    connection.execute("UPDATE reservation.moves SET position = 0")
    handle_some(connection, store, 20)
    connection.execute(
        "UPDATE reservation.moves SET position = %s, message_id = %s WHERE category = %s",
        [*foreign, RESERVED],
    )
    line = prune(connection, reservation, status=2).stderr
    assert "`reservation positions reset bank:account`" in line
    assert reservations(connection) == 20


def test_a_position_without_an_id_takes_one_when_it_moves(connection, store):
    """It has none where its message was pruned."""
    handle_some(connection, store)
    connection.execute("UPDATE reservation.moves SET message_id = NULL")
    connection.execute("DELETE FROM message_store.messages WHERE global_position >= 6")
    assert positions(connection)[RESERVED] == (8, None)
    drain(connection)
    store.write(deposit("later"), STREAM)
    drain(connection)
    position, message_id = positions(connection)[RESERVED]
    assert message_at(store, RESERVED, position).id == message_id


def test_a_position_without_an_id_is_foreign_beyond_all_that_was_written(connection, store):
    """A log from which messages were removed reaches it still; a new one does not."""
    handle_some(connection, store)
    connection.execute("UPDATE reservation.moves SET message_id = NULL")
    connection.execute("TRUNCATE message_store.messages")
    drain(connection)
    connection.execute(TRUNCATE)
    with pytest.raises(StoreReplacedError):
        drain(connection)


# What the strategies remember


@pytest.mark.parametrize(
    ("once", "declared"),
    [(Processed(key="pay_id"), "Processed(key='pay_id')"), (Revisions(), "Revisions()")],
)
def test_records_of_another_log_can_be_forgotten(
    connection, store, reservation, once, declared, tmp_path
):
    """A reset with `--forget` lets new messages take effect despite what the old log left."""
    component, module = till(once), f"forgetting_{type(once).__name__.lower()}"
    (tmp_path / f"{module}.py").write_text(
        "from reservation.strategies import Processed, Revisions\n"
        "from tests.apps.once import till\n"
        f"till = till({declared})\n"
    )
    reset = ("positions", "reset", f"{module}:till", "--app-dir", str(tmp_path), "--yes")
    prepare(connection)
    store.write([pay("p1", 5), pay("p2", 6)], SENT)
    drain(connection, component)
    connection.execute(
        "INSERT INTO reservation.state_horizons (stream_name, expired) "
        "SELECT n, '{}' FROM unnest('{account:state-1, till:state-1, till:stated-1}'::text[]) AS n"
    )
    connection.execute(TRUNCATE)
    store.write([pay("p1", 1), pay("p3", 2)], SENT)
    asked = reservation(*reset, status=2)
    assert re.search(r"remember \d (processed messages|revisions)", asked.stderr)
    assert "--forget" in asked.stderr
    reservation(*reset, "till:command", "--forget", status=2)
    assert "till: forgets " in reservation(*reset, "--forget").stdout
    others = connection.execute("SELECT stream_name FROM reservation.state_horizons ORDER BY 1")
    assert others.fetchall() == [("account:state-1",), ("till:stated-1",)]
    drain(connection, component)
    assert effects(connection) == {"p1": 2, "p2": 1, "p3": 1}


def test_forgotten_records_are_rebuilt_from_the_log(connection, store):
    """Handled again, a message whose event is there leaves its record, by which reissues go."""
    component = purse(Processed(key=lambda command: command.deposit_id))
    store.write([deposit("a", "1"), deposit("b", "2")], PURSE)
    drain(connection, component)
    connection.execute("DELETE FROM reservation.processed_messages")
    connection.execute("UPDATE reservation.moves SET position = 0")
    store.write([deposit("a", "1"), deposit("c", "3")], PURSE)
    counts = drain(connection, component).counts
    assert counts == {"redelivered": 2, "duplicate": 1, "handled": 1}
    assert [m.type for m in store.read_stream("purse-123")] == ["Deposited"] * 3
