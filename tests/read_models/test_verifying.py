"""Comparing the rows of a read model with those of a rebuild."""

import json
import random

import psycopg
import pytest

import consumers
from reservation import ReadContext, ReadModel
from reservation.errors import HandlerError, StoreError
from tests.apps.bank import address
from tests.apps.occupancy import (
    BOOKINGS,
    FIRST,
    ROOT,
    Booked,
    Cancelled,
    book,
    by_sets,
    make_nights,
    nights,
    one_by_one,
    take,
)
from tests.consumers.builders import decide
from tests.read_models.test_switching import fits
from tests.support.commands import invoke_cli
from tests.support.consuming import hosted, until
from tests.support.read_models import verify


def verified(connection, status=0):
    done = invoke_cli(
        "models", "verify", FIRST, "--json", "--database-url", address(connection), cwd=ROOT
    )
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout)


def drain(connection, model, **options):
    consumers.drain(model, address(connection), **options)


def test_rows_of_the_events_are_proved(connection, store):
    """Nothing is left of the rebuild."""
    book(store, 1, 1, 2)
    drain(connection, one_by_one())
    result = verified(connection)
    assert result["proved"] is True
    assert result["messages"] == 3
    assert result["positions"] == {BOOKINGS: 3}
    (table,) = result["tables"]
    assert (table["table"], table["rows"], table["samples"]) == ("nights", 2, [])
    ((left,),) = connection.execute(
        "SELECT count(*) FROM pg_namespace WHERE nspname LIKE '%verify%'"
    ).fetchall()
    assert left == 0


def test_rows_that_somebody_changed_are_named(connection, store):
    """By their keys, both ways, with the columns that differ."""
    book(store, 1, 2, 3)
    drain(connection, one_by_one())
    connection.execute("UPDATE occupancy_1.nights SET taken = 7 WHERE night = 1")
    connection.execute("DELETE FROM occupancy_1.nights WHERE night = 2")
    connection.execute("INSERT INTO occupancy_1.nights VALUES (9, 1)")
    result = verified(connection, status=1)
    fits("verify", result)
    assert result["proved"] is False
    (table,) = result["tables"]
    assert (table["missing"], table["unexpected"], table["differing"]) == (1, 1, 1)
    assert table["samples"] == [
        {"key": {"night": 1}, "kind": "differing", "fields": ["taken"]},
        {"key": {"night": 2}, "kind": "missing", "fields": []},
        {"key": {"night": 9}, "kind": "unexpected", "fields": []},
    ]
    done = invoke_cli("models", "verify", FIRST, "--database-url", address(connection), cwd=ROOT)
    assert "differing in taken: night=1" in done.stdout


def test_tables_that_only_one_side_has_are_named(connection, store):
    """Somebody dropped one, and made another."""
    book(store, 1)
    drain(connection, one_by_one())
    connection.execute("ALTER TABLE occupancy_1.nights RENAME TO days")
    result = verified(connection, status=1)
    assert (result["missingTables"], result["unexpectedTables"]) == (["nights"], ["days"])


def test_numbers_are_compared_digit_for_digit(connection, store):
    """Also where a float has no room for the last one."""
    model = ReadModel("totals", version=1)
    model.tables(
        lambda connection: connection.execute("CREATE TABLE t (id numeric PRIMARY KEY, n numeric)")
    )
    model.handle(Booked, category=BOOKINGS)(
        lambda event, context: (
            context.connection.execute("INSERT INTO t VALUES (1.5, 100000000000000000.01)") and None
        )
    )
    book(store, 1)
    drain(connection, model)
    connection.execute("UPDATE totals_1.t SET n = 100000000000000000.02")
    (table,) = verify(connection, model).tables
    assert [(row.key, row.fields) for row in table.named] == [({"id": "1.5"}, ["n"])]


def test_types_of_the_schema_and_any_name_of_a_column_are_compared(connection, store):
    """A value that is missing differs from the null of JSON."""
    model = ReadModel("rooms", version=1)

    @model.tables
    def tables(connection) -> None:
        connection.execute("CREATE TYPE kind AS ENUM ('single', 'double')")
        connection.execute(
            "CREATE TABLE rooms (kind kind, live int, rebuilt int, more jsonb,"
            " PRIMARY KEY (kind, live))"
        )

    @model.handle(Booked, category=BOOKINGS)
    def booked(event: Booked, context: ReadContext) -> None:
        context.connection.execute(
            "INSERT INTO rooms VALUES ('single', %s, 1, 'null')", [event.night]
        )

    book(store, 1, 2, 3, 10)
    drain(connection, model)
    assert verify(connection, model).is_proved
    connection.execute("UPDATE rooms_1.rooms SET more = NULL WHERE live = 2")
    connection.execute("UPDATE rooms_1.rooms SET rebuilt = 2 WHERE live = 10")
    connection.execute("DELETE FROM rooms_1.rooms WHERE live = 3")
    (table,) = verify(connection, model).tables
    assert [(row.key["live"], row.kind, row.fields) for row in table.named] == [
        (2, "differing", ["more"]),
        (3, "missing", ()),
        (10, "differing", ["rebuilt"]),
    ]
    assert {row.key["kind"] for row in table.named} == {"single"}


def test_a_version_that_was_never_run_has_nothing_to_prove(connection):
    """The way out is said, and a component has no tables."""
    done = invoke_cli("models", "verify", FIRST, "--database-url", address(connection), cwd=ROOT)
    assert done.returncode == 2
    assert "was never run" in done.stderr
    at = ["--database-url", address(connection)]
    done = invoke_cli("models", "verify", "bank:account", *at)
    assert (done.returncode, "reservation reconcile" in done.stderr) == (2, True)
    done = invoke_cli("reconcile", FIRST, *at, cwd=ROOT)
    assert (done.returncode, "models verify" in done.stderr) == (2, True)


def test_dead_letters_are_left_out(connection, store):
    """Their events are in neither."""
    book(store, 1, rooms=13, booking="bad")
    book(store, 2, booking="bad")
    book(store, 3)
    drain(connection, one_by_one(attempts=1))
    result = verified(connection)
    assert (result["messages"], result["leftOut"]) == (3, 2)
    assert nights(connection) == {3: 1}


def test_a_corrected_event_is_handled_as_it_was_corrected(connection, store):
    """The log has it as it was sent."""
    book(store, 1, rooms=13)
    drain(connection, one_by_one(attempts=1))
    corrected = '{"bookingId": "b0", "night": 1, "rooms": 12}'
    decide(connection, "retry", "1", "--data", "-", "--reason", "typo", data=corrected)
    drain(connection, one_by_one())
    assert nights(connection) == {1: 12}
    assert verified(connection)["proved"]


def test_a_handler_that_raises_in_the_rebuild_is_reported(connection, store):
    """What is live was made by other code."""
    book(store, 1)
    drain(connection, one_by_one())
    model = ReadModel("occupancy", version=1)
    model.tables(make_nights)
    model.handle(Booked, category=BOOKINGS)(lambda event, context: 1 / 0)
    with pytest.raises(HandlerError, match="ZeroDivisionError"):
        verify(connection, model)
    assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_rows_that_depend_on_more_than_the_events_differ(connection, store):
    """A random number is another one each time."""
    model = ReadModel("occupancy", version=1)
    model.tables(make_nights)

    @model.handle(Booked, category=BOOKINGS)
    def booked(event: Booked, context: ReadContext) -> None:
        take(context, event.night, random.randrange(1 << 30))

    book(store, 1)
    drain(connection, model)
    assert not verify(connection, model).is_proved


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_several_categories_are_read_in_the_order_of_the_store(connection, store, size):
    """As their consumers stand, each on its own."""
    model = by_sets(1)
    model.handle_many(Cancelled, category="refund")(
        lambda events, context: [take_back(context, one.event) for one in events] and None
    )
    for n in range(10):
        book(store, n, booking=f"b{n}")
        store.write(Cancelled("b", n % 3), f"refund-{n}")
    drain(connection, model, batch_size=size)
    book(store, 99)
    result = verify(connection, model)
    assert result.is_proved
    assert result.rebuilt.positions == {BOOKINGS: 19, "refund": 20}


def take_back(context, event):
    context.connection.execute(
        "INSERT INTO nights VALUES (%s, -1, 0)"
        " ON CONFLICT (night) DO UPDATE SET taken = nights.taken - 1",
        [event.night],
    )


def test_partitions_may_stand_at_different_positions(connection, store):
    """Each was handled up to its own."""
    model = one_by_one()
    drain(connection, model)
    connection.execute("DELETE FROM reservation.members")
    at = ["--database-url", address(connection)]
    assert invoke_cli("partitions", FIRST, "4", *at, cwd=ROOT).returncode == 0
    book(store, *range(40))
    drain(connection, model)
    connection.execute("DELETE FROM reservation.members")
    for partition, night in ((1, 25), (2, 10)):
        connection.execute(
            "UPDATE reservation.moves SET position = %s, message_id = NULL WHERE partition = %s",
            [night, partition],
        )
        connection.execute(
            "DELETE FROM occupancy_1.nights n USING message_store.messages m"
            " WHERE (m.data->>'night')::int = n.night AND m.global_position > %s"
            " AND reservation.partition_of(m.stream_name, 4) = %s",
            [night, partition],
        )
    result = verified(connection)
    assert 20 < result["messages"] < 40
    assert len(nights(connection)) == result["messages"]


def test_consumers_go_on_meanwhile(connection, store):
    """The comparison is of the moment at which it began."""
    model = one_by_one()
    book(store, *range(50))
    with hosted(model, address(connection)):
        until(lambda: verified_or_not_there(connection, model))
        for n in range(20):
            book(store, n, booking=f"more{n}")
            assert verify(connection, model).is_proved


def verified_or_not_there(connection, model):
    try:
        return verify(connection, model).is_proved
    except StoreError:
        return False
