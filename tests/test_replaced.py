"""A store that was cleared, restored or replaced is recognized, and no message is passed over."""

import json
import os
import re
import subprocess
from contextlib import closing
from datetime import timedelta
from itertools import islice

import pytest
from psycopg import conninfo

from bank import account
from consumers.group.inspection.status import read_status
from consumers.group.memory import forget, remembered
from reservation import MessageStore, Processed, Revisions, install
from reservation.errors import ExpectedVersionError, ForeignPositionError
from reservation.maintenance.eventide_positions import position_stream
from reservation.maintenance.pruning import prune_reservations
from reservation.postgres.connection import connect
from tests.bank import RESERVED, batch, batches, broken, drain, event_types, wait_until_drained
from tests.controls import COMMANDS as STREAM
from tests.controls import deposit, open_
from tests.idempotence import PURSE, purse
from tests.once import SENT, effects, pay, prepare, run, till
from tests.processes import EXAMPLES, PATIENCE, Started, run_cli
from tests.servers import OwnServer, Standby, programs
from tests.watching import Watched, until

COMMANDS = "account:command"
TRUNCATE = "TRUNCATE message_store.messages RESTART IDENTITY"
NEW = 300


@pytest.fixture
def reservation(database_url):
    """Give the command line on the test's database."""

    def run(*arguments, status=0):
        done = run_cli(*arguments, env={"RESERVATION_DATABASE_URL": database_url, "COLUMNS": "200"})
        assert done.returncode == status, done.stderr
        assert "Traceback" not in done.stderr
        return json.loads(done.stdout) if "--json" in arguments and status == 0 else done

    return run


def handle_some(connection, store, count=3):
    """Have an account with deposits and no consumer at work."""
    store.write([open_(), *(deposit(f"old{n}", "1") for n in range(count))], STREAM)
    drain(connection)
    connection.execute("DELETE FROM reservation.members")


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


@pytest.mark.parametrize("before", [20, 700])
def test_a_consumer_that_is_started_on_a_cleared_store_stops(
    connection, store, reservation, database_url, before
):
    """A consumer started on a cleared store stops with one line that names what to run."""
    handle_some(connection, store, before)
    new_log(connection, store)
    with Started(database_url) as started:
        assert started.process.wait(PATIENCE) == 2
        line = started.log.strip().splitlines()[-1]
    assert "not in this store" in line
    assert "`reservation positions reset bank:account`" in line
    assert event_types(store) == []
    assert reservation("positions", "reset", "bank:account", "--yes").stdout
    with Started(database_url) as started:
        wait_until_drained(connection, started)
        assert started.stop() == 0
    assert deposits(store) == NEW - 1
    assert broken(connection) == {}


@pytest.mark.parametrize("before", [20, 700])
def test_a_running_consumer_stops_where_the_store_is_cleared(
    connection, store, reservation, database_url, before
):
    """A running consumer stops when the store is cleared, and mixes the two logs nowhere."""
    handle_some(connection, store, before)
    with Started(database_url) as started:
        for category in (COMMANDS, RESERVED):
            started.wait_for("consumer_started", category=category)
        new_log(connection, store)
        assert started.process.wait(PATIENCE) == 2
        assert "not in this store" in started.log
    assert event_types(store) == []
    reservation("positions", "reset", "bank:account", "--yes")
    drain(connection)
    assert deposits(store) == NEW - 1
    assert broken(connection) == {}


def test_no_batch_of_a_new_log_commits_on_an_old_position(connection, store):
    """No batch of a new log commits, even if it was cleared between two checks."""
    handle_some(connection, store)
    claimed = batch(connection, COMMANDS)
    new_log(connection, store)
    before = positions(connection)
    with pytest.raises(ForeignPositionError, match="not in this store"):
        claimed.run(5)
    assert positions(connection) == before
    assert event_types(store) == []


def test_a_position_is_stored_with_the_id_of_its_message(connection, store):
    """In every category a position is stored with the id of its message."""
    handle_some(connection, store)
    for category, (position, message_id) in positions(connection).items():
        (message,) = islice(store.read_category(category, position=position), 1)
        assert (message.global_position, message.id) == (position, message_id)


def test_a_snapshot_from_before_is_not_believed(connection, store):
    """A snapshot of a former log is ignored; the balance is that of the events."""
    component = purse(snapshot_every=2)
    for amount in ("100", "13"):
        connection.execute(TRUNCATE)
        connection.execute("UPDATE reservation.positions SET position = 0")
        store.write([deposit(f"{amount}-{n}", amount) for n in range(10)], PURSE)
        # Batches of one: each has to load the purse again, and finds what snapshot there is.
        for _ in range(10):
            batch(connection, component.command_category, component).run(1)
        rows = connection.execute(
            "SELECT s.position, s.data->>'balance', s.event_id = m.id FROM reservation.snapshots s "
            "JOIN message_store.messages m USING (stream_name, position)"
        ).fetchall()
        assert [(position, float(total), same) for position, total, same in rows] == [
            (9, 10 * float(amount), True)
        ]


def test_a_snapshot_that_names_no_event_is_replaced(connection, store):
    """A snapshot from before the upgrade, which names no event, is replaced."""
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


def test_status_and_positions_show_foreign_positions(connection, store, reservation):
    """`status` and `positions` show the foreign positions and the command that helps."""
    handle_some(connection, store)
    assert not any(
        partition["foreign"] for partition in reservation("status", "--json")["partitions"]
    )
    new_log(connection, store)
    shown = reservation("status", "--json")
    assert {
        partition["category"]: (partition["foreign"], partition["lagMessages"])
        for partition in shown["partitions"]
    } == {
        COMMANDS: (True, NEW),
        RESERVED: (True, 0),
    }
    table = reservation("status", "bank:account").stdout
    assert "not of this store" in table
    assert "`reservation positions reset bank:account`" in " ".join(table.split())
    listed = reservation("positions", "list", "--json")["positions"]
    assert [row["foreign"] for row in listed] == [True, True]


def test_readiness_shows_the_error_until_the_end(connection, store, database_url):
    """Readiness shows the error while the supervisor stops the other consumers."""
    handle_some(connection, store)
    with Watched(database_url) as watched:
        watched.ready()
        new_log(connection, store)
        heard = []

        def asked():
            try:
                status, text = watched.ask("/readyz")
            except OSError:  # It is gone: refused, or reset between the request and the answer.
                return True
            heard.append((status, text))
            return status != 200

        until(asked)
        assert watched.process.wait(PATIENCE) == 2
    assert all(status == 503 for status, text in heard if text != "ok\n")


@pytest.mark.parametrize("how", ["messages alone", "positions alone", "both"])
def test_a_restore_to_an_earlier_time(connection, store, database_url, how, own_tools):
    """A restore of the messages alone is recognized; one of both schemas repeats no effect."""
    handle_some(connection, store)
    dump, restore = own_tools
    dump("message_store", "reservation")
    store.write([deposit(f"later{n}", "1") for n in range(5)], STREAM)
    batches(connection)
    connection.execute("DELETE FROM reservation.members")
    restore(
        *{"messages alone": ["message_store"], "positions alone": ["reservation"]}.get(
            how, ["message_store", "reservation"]
        )
    )
    if how == "messages alone":
        with pytest.raises(ForeignPositionError):
            batches(connection)
        return
    store.write([deposit(f"again{n}", "1") for n in range(2)], STREAM)
    batches(connection)
    assert deposits(store) == (3 + 5 + 2 if how == "positions alone" else 3 + 2)
    assert broken(connection) == {}


def test_positions_of_another_store_are_recognized(
    connection, store, make_database, template, own_tools
):
    """Positions restored beside messages of another store are recognized."""
    handle_some(connection, store)
    dump, restore = own_tools
    dump("reservation")
    address = make_database(template)
    with connect(address, autocommit=True) as other:
        MessageStore(other).write([open_(), *(deposit(f"x{n}") for n in range(50))], STREAM)
        restore("reservation", to=address)
        with pytest.raises(ForeignPositionError):
            batches(other)


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
        with connect(to, autocommit=True) as connection:
            for schema in schemas:
                connection.execute(f"DROP SCHEMA {schema} CASCADE")
        names = [f"--schema={schema}" for schema in schemas]
        with connect(to, autocommit=True) as connection:
            for schema in schemas:
                connection.execute(f"CREATE SCHEMA {schema}")
        subprocess.run(
            [folder / "pg_restore", *names, "--exit-on-error", "-d", to, file], check=True
        )

    return dump, restore


def age(connection):
    """Have every message stored long ago."""
    connection.execute("UPDATE message_store.messages SET time = time - interval '100 days'")


def pruned(connection):
    """Remove the reservations that may go, and return how many did."""
    steps = prune_reservations(account, timedelta(days=90))(connection, True, 1000)
    return sum(step.count for step in steps)


def test_prune_keeps_the_message_that_a_position_stands_at(connection, store):
    """`prune` keeps the message at a position until the position has moved."""
    handle_some(connection, store)
    age(connection)
    assert pruned(connection) == 2
    assert pruned(connection) == 0
    store.write(deposit("later", "1"), STREAM)
    drain(connection)
    age(connection)
    assert pruned(connection) == 1
    assert deposits(store) == 4


def test_nothing_is_pruned_by_a_position_of_another_log(connection, store, reservation):
    """A position of another log allows nothing to be pruned."""
    handle_some(connection, store, 50)
    new_log(connection, store, 20)
    connection.execute(
        "UPDATE reservation.positions SET position = 0 WHERE category = %s", [COMMANDS]
    )
    batch(connection, COMMANDS).run(100)
    age(connection)
    assert pruned(connection) == 0
    line = reservation(
        "prune", "bank:account", "--reservations-older-than", "90d", "--apply", status=2
    ).stderr
    assert "`reservation positions reset bank:account`" in line


def former_version(connection):
    """Leave the store as the former version installed it."""
    connection.execute("DELETE FROM reservation.versions WHERE version > 7")
    connection.execute("DROP FUNCTION reservation.take_part")
    connection.execute(
        "CREATE FUNCTION reservation.take_part("
        "consumer text, category text, member bigint, lease interval, OUT head bigint, "
        "OUT carried bigint[], OUT held integer[], OUT positions bigint[], OUT epochs bigint[], "
        "OUT unclean integer[], OUT retry boolean) RETURNS SETOF record "
        "LANGUAGE plpgsql AS 'BEGIN END'"
    )
    connection.execute("DROP TABLE reservation.store_identity CASCADE")
    connection.execute("ALTER TABLE reservation.positions DROP COLUMN message_id CASCADE")
    connection.execute(
        "ALTER TABLE reservation.groups DROP COLUMN carried_ids, DROP COLUMN first_position"
    )
    connection.execute("ALTER TABLE reservation.snapshots DROP COLUMN event_id")


def test_an_upgrade_gives_positions_the_ids_of_their_messages(connection, store):
    """An upgrade gives existing positions the ids of their messages."""
    handle_some(connection, store)
    before = positions(connection)
    former_version(connection)
    assert install(connection).from_version == 7
    assert positions(connection) == before
    store.write(deposit("later"), STREAM)
    batches(connection)
    assert deposits(store) == 4
    new_log(connection, store)
    with pytest.raises(ForeignPositionError):
        batches(connection)


def test_a_position_without_an_id_takes_one_when_it_moves(connection, store):
    """A position without an id, as its message was pruned, gets one when it moves."""
    handle_some(connection, store)
    former_version(connection)
    connection.execute("DELETE FROM message_store.messages WHERE global_position >= 6")
    install(connection)
    assert positions(connection)[RESERVED] == (8, None)
    drain(connection)
    store.write(deposit("later"), STREAM)
    drain(connection)
    position, message_id = positions(connection)[RESERVED]
    (copy,) = islice(store.read_category(RESERVED, position=position), 1)
    assert copy.id == message_id


def test_a_position_without_an_id_is_foreign_beyond_all_that_was_written(connection, store):
    """A position without an id is foreign if the log does not reach it."""
    handle_some(connection, store)
    connection.execute("UPDATE reservation.positions SET message_id = NULL")
    connection.execute("TRUNCATE message_store.messages")
    batches(connection)
    connection.execute(TRUNCATE)
    with pytest.raises(ForeignPositionError):
        batches(connection)


def test_partitions_recognize_it_each(connection, store, database_url, reservation):
    """Each partition recognizes a new log, also those carried over from another number."""
    for n in range(8):
        store.write([open_(str(n)), deposit(f"d{n}", account=str(n))], f"{COMMANDS}-{n}")
    with Started(database_url, "--partitions", "4") as started:
        wait_until_drained(connection, started)
        assert started.stop() == 0
    named = "SELECT count(*) FROM reservation.positions WHERE message_id IS NULL"
    assert connection.execute(named).fetchone() == (0,)
    # One partition is far behind, so a change of their number carries the others' positions over.
    connection.execute("UPDATE reservation.positions SET position = 0 WHERE partition = 2")
    reservation("partitions", "bank:account", "2")
    assert not any(partition.stored.foreign for partition in read_status(connection).partitions)
    new_log(connection, store)
    for arguments in (("partitions", "bank:account", "3"), ("start", "bank:account")):
        line = reservation(*arguments, status=2).stderr
        assert "`reservation positions reset bank:account`" in line
    reservation("positions", "reset", "bank:account", "--yes")
    with Started(database_url) as started:
        wait_until_drained(connection, started)
        assert started.stop() == 0
    assert deposits(store) == NEW - 1


def test_an_imported_position_names_its_message(connection, store, reservation):
    """An imported position has the id of its message, if there is one."""
    store.write([open_(), *(deposit(f"d{n}") for n in range(4))], STREAM)
    connection.execute(
        "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, 'Recorded', "
        "'{\"position\": 3}')",
        [position_stream(COMMANDS, None)],
    )
    reservation("positions", "import", "bank:account", "--category", COMMANDS)
    position, message_id = positions(connection)[COMMANDS]
    (message,) = islice(store.read_category(COMMANDS, position=position), 1)
    assert message.id == message_id
    new_log(connection, store)
    with pytest.raises(ForeignPositionError):
        batches(connection)


def remember(connection, component, *commands):
    """Handle commands in a log that is then cleared, and leave nobody at work."""
    prepare(connection)
    MessageStore(connection).write(list(commands), SENT)
    run(connection, component)
    connection.execute("DELETE FROM reservation.members")
    connection.execute(TRUNCATE)


@pytest.mark.parametrize(
    ("once", "declared"),
    [(Processed(key="pay_id"), "Processed(key='pay_id')"), (Revisions(), "Revisions()")],
)
def test_records_of_another_log_can_be_forgotten(
    connection, store, once, declared, tmp_path, monkeypatch, database_url
):
    """A reset with `--forget` lets new messages take effect despite records of the old log."""
    component = till(once)
    (tmp_path / "shop.py").write_text(
        "from tests.once import till\nfrom reservation import Processed, Revisions\n"
        f"till = till({declared})\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(EXAMPLES.parent), str(EXAMPLES)]))
    remember(connection, component, pay("p1", 5), pay("p2", 6))
    store.write([pay("p1", 1), pay("p3", 2)], SENT)
    reset = ("positions", "reset", "shop:till", "--app-dir", str(tmp_path), "--yes")
    env = {"RESERVATION_DATABASE_URL": database_url}
    asked = run_cli(*reset, env=env)
    assert asked.returncode == 2
    assert re.search(r"remember \d (processed messages|revisions)", asked.stderr)
    assert "--forget" in asked.stderr
    assert run_cli(*reset, "till:command", "--forget", env=env).returncode == 2
    done = run_cli(*reset, "--forget", env=env)
    assert done.returncode == 0, done.stderr
    assert "till: forgets " in done.stdout
    assert remembered(connection, component) == {}
    run(connection, component)
    assert effects(connection) == {"p1": 2, "p2": 1, "p3": 1}


def test_forgotten_records_are_rebuilt_from_the_log(connection, store):
    """Records that were forgotten are rebuilt when the log is handled again."""
    component = purse(Processed(key=lambda command: command.deposit_id))
    store.write([deposit("a", "1"), deposit("b", "2")], PURSE)
    batches(connection, component)
    forget(connection, component)
    connection.execute("UPDATE reservation.positions SET position = 0")
    store.write([deposit("a", "1"), deposit("c", "3")], PURSE)
    claimed = batch(connection, component.command_category, component)
    with pytest.raises(ExpectedVersionError):
        claimed.run(100)
    assert claimed.run(100, careful=True).counts == {"redelivered": 2, "duplicate": 1, "handled": 1}
    deposited = [m.type for m in store.read_stream("purse-123")]
    assert deposited == ["Deposited"] * 3


@pytest.mark.long
@pytest.mark.faults
def test_failover_to_a_replica_that_lost_the_last_transactions(server_folder):
    """After a failover that lost messages and positions alike, consumers go on."""
    with (
        closing(OwnServer(server_folder / "primary")) as primary,
        Standby(primary, server_folder) as standby,
    ):
        address = conninfo.make_conninfo(
            primary.address,
            host=f"{conninfo.conninfo_to_dict(primary.address)['host']},{standby.folder}",
            port="5432,5433",
            target_session_attrs="read-write",
        )
        with connect(primary.address, autocommit=True) as connection:
            install(connection)
            store = MessageStore(connection)
            store.write([open_(), *(deposit(f"kept{n}", "1") for n in range(50))], STREAM)
            standby.start()
            with Started(address) as started:
                wait_until_drained(connection, started)
                standby.catch_up()
                standby.stop_following()
                store.write([deposit(f"lost{n}", "1") for n in range(50)], STREAM)
                wait_until_drained(connection, started)
                primary.crash()
                standby.promote()
                with connect(address, autocommit=True) as promoted:
                    after = MessageStore(promoted)
                    assert deposits(after) == 50
                    after.write([deposit(f"new{n}", "1") for n in range(20)], STREAM)
                    wait_until_drained(promoted, started)
                    assert deposits(after) == 70
                    assert broken(promoted) == {}
                    assert started.stop() == 0
