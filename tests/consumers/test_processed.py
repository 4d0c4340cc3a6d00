"""Processed messages: what was handled is recognized for as long as its record is kept."""

import contextlib
import threading
import time
from collections import Counter
from datetime import timedelta
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reservation import Component, MessageStore
from reservation.errors import DeclarationError
from reservation.strategies import Processed
from tests.apps.once import (
    COMMANDS,
    SENT,
    Pay,
    Refund,
    effects,
    letters,
    pay,
    prepare,
    prune,
    redeliver,
    refund,
    run,
    till,
)
from tests.support.consuming import hosted, until
from tests.support.started import PATIENCE
from tests.support.stored_positions import store_position

BY_KEY = Processed(key="pay_id")
DAY = timedelta(days=1)
KEPT = Processed(keep=2 * DAY)
KEPT_BY_KEY = Processed(key="pay_id", keep=2 * DAY)
KEYS = [BY_KEY, KEPT_BY_KEY]
TILL = ("processed messages", "till Pay")
SHOP = ("processed messages", "shop Pay")


@pytest.fixture
def store(connection):
    """Give a client of the test's store, which has the table that the handlers write to."""
    prepare(connection)
    yield MessageStore(connection)
    connection.execute("DROP TABLE effects")


def age(connection, key, days):
    """Have the messages of a key stored some days ago, at noon of that day."""
    connection.execute(
        "UPDATE message_store.messages SET time = (now() AT TIME ZONE 'utc')::date "
        "+ interval '12 hours' - make_interval(days => %s) WHERE data->>'payId' = %s",
        [days, key],
    )


def write_aged(connection, store, *sent, stream=SENT):
    """Write messages of keys, each stored some days ago."""
    for key, days in sent:
        store.write(pay(key), stream)
        age(connection, key, days)


def begun(connection, *consumers):
    """Let consumers be older than any message, so that each day has its own partition."""
    for consumer in consumers:
        connection.execute(
            "INSERT INTO reservation.processed_handlers (consumer, type, keep, since) "
            "VALUES (%s, 'Pay', '1 day', (now() AT TIME ZONE 'utc')::date - 100)",
            [consumer],
        )


def drop_until(connection, when):
    """Let the records of messages from before that time be gone."""
    connection.execute(f"UPDATE reservation.processed_handlers SET dropped_until = {when}")


def kept(connection):
    rows = connection.execute("SELECT count(*) FROM reservation.processed_messages").fetchall()
    return rows[0][0]


# Keys


@pytest.mark.parametrize(("once", "times"), [(Processed(), 2), (BY_KEY, 1), (KEPT_BY_KEY, 1)])
def test_only_a_business_key_recognizes_a_reissue_under_a_new_id(connection, store, once, times):
    """Only a business key recognizes a reissue under a new id."""
    store.write(pay("a"), SENT)
    run(connection, till(once))
    store.write(pay("a"), "till:command-7")
    run(connection, till(once))
    assert effects(connection) == Counter(a=times)


@pytest.mark.parametrize("once", KEYS)
def test_a_key_is_that_of_one_type_and_one_consumer(connection, store, once):
    """Within a batch or not, the same key of another type or consumer is another key."""
    store.write(pay("a"), "shop:command-1")
    assert run(connection, till(once, name="shop")) == Counter(handled=1)
    store.write([pay("a"), refund("a"), pay("b"), pay("a")], SENT)
    assert run(connection, till(once)) == Counter(handled=3, duplicate=1)
    store.write([pay("a"), pay("b")], "shop:command-1")
    assert run(connection, till(once, name="shop")) == Counter(handled=1, duplicate=1)
    assert effects(connection) == Counter({"a": 1, "-a": 1, "b": 1})


@pytest.mark.parametrize(
    ("key", "sent"),
    [
        (["till_id", "pay_id"], [pay("1", till="12"), pay("21", till="1"), pay("1", till="12")]),
        (lambda command: command.pay_id.lower(), [pay("A"), pay("b"), pay("a")]),
    ],
    ids=["fields", "function"],
)
def test_a_key_has_parts_or_is_made_by_a_function(connection, store, key, sent):
    """Keys of several fields are equal only if each part is."""
    store.write(sent, SENT)
    assert run(connection, till(Processed(key=key))) == Counter(handled=2, duplicate=1)


@pytest.mark.parametrize(
    ("once", "key", "problem"),
    [
        (BY_KEY, "", "Cannot handle Pay at .*: field pay_id is empty"),
        (Processed(key=lambda c: {}["x"]), "a", "key function for Pay at .* raised"),
        (Processed(key=lambda c: 1.5), "a", "is a float"),
    ],
    ids=["empty", "raises", "float"],
)
def test_a_message_without_a_key_is_a_dead_letter(connection, store, once, key, problem):
    """Its error names it, and the handler is not called."""
    store.write(pay(key), SENT)
    assert run(connection, till(once)) == Counter(dead=1)
    ((_, _, _, error),) = letters(connection)
    with pytest.raises(Exception, match=problem):
        raise ValueError(error)
    assert effects(connection) == Counter()


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: till(Processed(key="nothing")), "Pay has no field 'nothing'"),
        (lambda: Processed(key=()), "names no field"),
        (lambda: Processed(key=3), "names no field"),
        (lambda: Processed(keep="90d"), "keep='90d' is not a timedelta"),
        (lambda: Processed(keep=timedelta(0)), "keep=0:00:00 is not longer than 0"),
        (lambda: Processed(keep=-DAY), "is not longer than 0"),
    ],
)
def test_a_wrong_declaration_of_the_strategy_is_refused(make, problem):
    """A wrong declaration is refused when it is made."""
    with pytest.raises(DeclarationError, match=problem):
        make()


def test_equal_declarations_are_one_strategy():
    """Equal declarations are one strategy, so that their handlers are looked up together."""
    assert Processed(key="a", keep=DAY) == Processed(key=["a"], keep=DAY)
    assert len({Processed(), Processed(), Processed(keep=DAY), Processed(key="a")}) == 3


@pytest.mark.parametrize("once", KEYS)
def test_a_type_may_be_added_to_a_running_component(connection, store, once):
    """A type added to a running component is recorded from its first message on."""
    store.write(pay("a"), SENT)
    assert run(connection, till(once)) == Counter(handled=1)
    store.write([refund("a"), refund("a"), pay("a")], SENT)
    assert run(connection, till(once)) == Counter(handled=1, duplicate=2)


# Two processes of a consumer, which read two categories


def reading_two(once, wait=lambda command: None, *, other=Pay):
    """Return a till that takes payments as commands, and payments or refunds of the shop."""
    component = Component("till", id="till_id")

    def take_effect(command, entity, context):
        wait(command)
        context.connection.execute(
            "INSERT INTO effects VALUES ('till', %s, %s)", [type(command).__name__, command.pay_id]
        )

    component.handle(Pay, once=once)(take_effect)
    component.handle(other, category="shop:command", once=once)(take_effect)
    return component


def is_read(connection, category, to):
    """Tell whether a category is read to a position."""
    rows = connection.execute(
        "SELECT position FROM reservation.positions WHERE category = %s", [category]
    ).fetchall()
    return rows == [(to,)]


@contextlib.contextmanager
def held_commits(connection, condition="true"):
    """Let transactions with effects wait before they commit, until the block ends."""
    connection.execute(
        "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "PERFORM pg_advisory_xact_lock_shared(7); RETURN NULL; END $$;"
        "CREATE CONSTRAINT TRIGGER hold AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED "
        f"FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION hold()"
    )
    connection.execute("SELECT pg_advisory_lock(7)")
    try:
        yield
    finally:
        connection.execute("SELECT pg_advisory_unlock(7)")


def waiting(connection):
    """Return how many sessions wait for a lock."""
    rows = connection.execute(
        "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted AND database = "
        "(SELECT oid FROM pg_database WHERE datname = current_database()) OR NOT granted "
        "AND locktype = 'transactionid'"
    ).fetchall()
    return rows[0][0]


@pytest.mark.parametrize(("once", "days"), [(BY_KEY, 0), (KEPT_BY_KEY, 1)])
def test_a_key_that_another_process_handled_meanwhile_is_a_duplicate(
    connection, database_url, store, once, days
):
    """A process that waits in a handler holds no lock, and then finds what the other has done."""
    begun(connection, "till")
    write_aged(connection, store, ("a", days))
    store.write(pay("a"), "shop:command-1")
    may_go_on = threading.Event()

    def wait(command):
        if threading.current_thread().name.endswith(COMMANDS):
            assert may_go_on.wait(PATIENCE)

    with hosted(reading_two(once, wait), database_url) as thread:
        until(lambda: is_read(connection, "shop:command", 2), thread)
        may_go_on.set()
        until(lambda: is_read(connection, COMMANDS, 1), thread)
    assert effects(connection) == Counter("a")


@pytest.mark.parametrize(
    ("once", "days", "keys"),
    [
        (BY_KEY, 0, "aa"),
        (KEPT_BY_KEY, 1, "aa"),
        (Processed(), 0, "ab"),
        (KEPT_BY_KEY, 0, "ab"),
    ],
)
def test_of_two_processes_that_commit_at_once_the_second_waits(
    connection, database_url, store, once, days, keys
):
    """Each key takes effect once, also of a type, or a day, that both record for the first time."""
    if days:
        begun(connection, "till")
    write_aged(connection, store, (keys[0], days))
    store.write(pay(keys[1]), "shop:command-1")
    with held_commits(connection), hosted(reading_two(once), database_url) as thread:
        until(lambda: waiting(connection) == 2, thread)
        connection.execute("SELECT pg_advisory_unlock(7)")
        until(lambda: is_read(connection, COMMANDS, 1), thread)
        until(lambda: is_read(connection, "shop:command", 2), thread)
    assert effects(connection) == Counter(set(keys))


def test_recording_a_key_blocks_no_other_handler(connection, database_url, store):
    """While a process commits what it recorded, other types and consumers go on."""
    store.write(pay("a"), SENT)
    store.write(refund("a"), "shop:command-1")
    is_payment = "NEW.component = 'till' AND NEW.type = 'Pay'"
    component = reading_two(BY_KEY, other=Refund)
    with (
        held_commits(connection, is_payment),
        hosted(component, database_url) as thread,
    ):
        until(lambda: waiting(connection) == 1, thread)
        until(lambda: is_read(connection, "shop:command", 2), thread)
        store.write(pay("a"), "other:command-1")
        others = till(BY_KEY, name="other")
        with hosted(others, database_url) as other:
            until(lambda: is_read(connection, "other:command", 3), other)
        assert effects(connection) == Counter({"-a": 1})
    assert effects(connection, "other") == Counter("a")


# For how long


def test_a_message_older_than_what_is_kept_is_refused(connection, store):
    """It may have been handled, so it is a dead letter after one attempt; others go on."""
    begun(connection, "till")
    write_aged(connection, store, *zip("abcde", range(5), strict=True))
    assert run(connection, till(KEPT_BY_KEY)) == Counter(handled=5)
    assert prune(connection) == ({TILL: 2}, [])
    redeliver(connection)
    for key in "de":  # of an entity each, so that none waits behind another
        connection.execute(
            "UPDATE message_store.messages SET stream_name = %s, position = 0, "
            "data = data || jsonb_build_object('tillId', %s::text) WHERE data->>'payId' = %s",
            [f"till:command-{key}", key, key],
        )
    assert run(connection, till(KEPT_BY_KEY)) == Counter(duplicate=3, dead=2)
    assert [(key, state, reason) for key, state, reason, _ in letters(connection)] == [
        ("d", "dead", "expired"),
        ("e", "dead", "expired"),
    ]
    assert "no longer known, so it may have been handled" in letters(connection)[0][3]
    attempts = connection.execute("SELECT DISTINCT attempts FROM reservation.dead_letters")
    assert attempts.fetchall() == [(1,)]
    assert effects(connection) == Counter("abcde")


@pytest.mark.parametrize(
    ("sent", "limit"), [([("a", 4000), ("b", 0)], 1), ([("b", 0), ("a", 4000)], 9)]
)
def test_a_message_that_nobody_had_handled_before_is_not_refused_for_its_age(
    connection, store, sent, limit
):
    """A new consumer refuses no message of an old log for its age, and recognizes it again."""
    write_aged(connection, store, *sent)
    assert run(connection, till(KEPT), limit) == Counter(handled=2)
    redeliver(connection)
    assert run(connection, till(KEPT), limit) == Counter(duplicate=2)


def test_the_first_moment_of_what_is_kept_is_kept(connection, store):
    """A message at the very start of the kept days is handled and recognized."""
    begun(connection, "till")
    store.write(pay("a"), SENT)
    begins = "(now() AT TIME ZONE 'utc')::date - interval '1 day'"
    connection.execute(f"UPDATE message_store.messages SET time = {begins}")
    drop_until(connection, begins)
    assert run(connection, till(KEPT)) == Counter(handled=1)
    redeliver(connection)
    assert run(connection, till(KEPT)) == Counter(duplicate=1)


def test_a_batch_notices_days_that_are_dropped_meanwhile(connection, store):
    """A batch that looked at a day dropped meanwhile runs again, and refuses the message."""
    store.write(pay("a"), SENT)
    run(connection, till(KEPT))
    write_aged(connection, store, ("b", 5))
    component = Component("till", id="till_id")

    @component.handle(Pay, once=KEPT)
    def take_effect(command, entity, context):
        drop_until(connection, "now() - interval '3 days'")

    assert run(connection, component) == Counter(dead=1)
    assert [(key, reason) for key, _, reason, _ in letters(connection)] == [("b", "expired")]


def test_a_late_reissue_is_recognized_as_long_as_the_first_record_is_kept(connection, store):
    """A late reissue is recognized as long as the record of the first message is kept."""
    begun(connection, "till")
    for days, key, expected in ((2, "a", 0), (3, "b", 1)):
        write_aged(connection, store, (key, days))
        run(connection, till(KEPT_BY_KEY))
        store.write(pay(key), SENT)
        assert run(connection, till(KEPT_BY_KEY)) == Counter(duplicate=1)
        prune(connection)
        store.write(pay(key), SENT)
        assert run(connection, till(KEPT_BY_KEY))["handled"] == expected


@pytest.mark.parametrize("once", KEYS)
def test_a_message_is_a_duplicate_of_its_reissue_that_was_handled_first(connection, store, once):
    """A message is a duplicate if its reissue, which is newer, was handled first."""
    begun(connection, "till")
    store.write(pay("a"), SENT)
    assert run(connection, till(once)) == Counter(handled=1)
    store.write(pay("a"), SENT)
    connection.execute(
        "UPDATE message_store.messages SET time = time - interval '2 days' WHERE position = 1"
    )
    assert run(connection, till(once)) == Counter(duplicate=1)


def test_the_time_to_keep_records_may_change(connection, store):
    """Changing how long records are kept forgets nothing that was known."""
    for n, once in enumerate((Processed(), KEPT, Processed(keep=9 * DAY), Processed())):
        store.write(pay(str(n)), SENT)
        redeliver(connection)
        assert run(connection, till(once)) == +Counter(handled=1, duplicate=n)
        prune(connection)


def test_a_handlers_period_affects_no_other(connection, store):
    """A change of one handler's period affects no other consumer or type."""
    for name in ("till", "shop"):
        store.write([pay("a"), refund("a")], f"{name}:command-123")
        run(connection, till(Processed(keep=9 * DAY), name=name))
    store.write([pay("b"), pay("c")], SENT)
    run(connection, till(KEPT), limit=1)
    # The numbers of handlers are used up by new ones only, and not by every batch.
    assert connection.execute(
        "SELECT handler, consumer, type, keep FROM reservation.processed_handlers "
        "ORDER BY handler <= 2, consumer, type"
    ).fetchall() == [
        (3, "shop", "Pay", 9 * DAY),
        (4, "shop", "Refund", 9 * DAY),
        (1, "till", "Pay", 2 * DAY),
        (2, "till", "Refund", 9 * DAY),
    ]


@pytest.fixture
def _far_away(monkeypatch):
    """Let this process be in another time zone than UTC."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("_far_away")
def test_the_time_of_a_message_is_kept_as_it_is_stored(connection, store):
    """The time of a message is kept as stored, whatever the zone of the process."""
    store.write(pay("a"), SENT)
    run(connection, till(KEPT))
    assert connection.execute(
        "SELECT count(*) FROM reservation.processed_messages p "
        "JOIN message_store.messages m USING (global_position, time)"
    ).fetchone() == (1,)


# Pruning


def test_days_are_dropped_of_each_handler_for_itself(connection, store):
    """What one handler keeps for longer, or for ever, is dropped of no other."""
    begun(connection, "till", "shop")
    write_aged(connection, store, ("till9", 9), ("till7", 7))
    write_aged(connection, store, ("shop7", 7), ("shop1", 1), stream="shop:command-123")
    run(connection, till(KEPT))
    run(connection, till(Processed(keep=30 * DAY), name="shop"))
    assert prune(connection, apply=False) == ({TILL: 2}, [])
    assert prune(connection) == ({TILL: 2}, [])
    assert kept(connection) == 2
    store.write(pay("new"), "shop:command-123")
    run(connection, till(KEPT, name="shop"))
    assert prune(connection) == ({SHOP: 1}, [])


def test_records_kept_for_ever_are_never_dropped(connection, store):
    """They stay, also where the handler kept them for a time before."""
    begun(connection, "till", "shop")
    write_aged(connection, store, ("a", 50))
    write_aged(connection, store, ("b", 9), stream="shop:command-1")
    run(connection, till(Processed()))
    run(connection, till(KEPT, name="shop"))
    store.write(pay("c"), "shop:command-1")
    run(connection, till(Processed(), name="shop"))
    store.write(pay("d"), "shop:command-1")
    assert prune(connection) == ({}, [])
    assert kept(connection) == 3


def test_waiting_messages_are_reported_only_if_they_keep_more_days(connection, store):
    """Waiting messages are reported only where they keep more days than asked for."""
    begun(connection, "till")
    write_aged(connection, store, ("a", 9))
    run(connection, till(KEPT))
    found = {}
    for days in (2, 1, 0):
        write_aged(connection, store, ("b", days))
        found[days] = prune(connection, apply=False)
        age(connection, "b", 0)
    assert found == dict.fromkeys(found, ({TILL: 1}, []))
    assert prune(connection) == ({TILL: 1}, [])


WAITING = {
    "none": ([], [], None, 4),
    "old and new": ([], [("Pay", "till", 9), ("Pay", "till", 5)], None, 2),
    "new and old": ([], [("Pay", "till", 5), ("Pay", "till", 9)], None, 2),
    "dead, old and new": ([9, 5], [], None, 2),
    "dead, new and old": ([5, 9], [], None, 2),
    "old and dead, new": ([9], [("Pay", "till", 5)], None, 2),
    "new and dead, old": ([5], [("Pay", "till", 9)], None, 2),
    "of another type": ([], [("Refund", "till", 9)], None, 4),
    "of another consumer": ([], [("Pay", "shop", 9)], None, 4),
    "of no consumer": ([], [("Pay", "nobody", 9)], None, 4),
    "handled": ([9], [], "state = 'handled'", 4),
    "dead, of another type": ([9], [], "type = 'Other'", 4),
    "dead, of another consumer": ([9], [], "consumer = 'shop'", 4),
    "of a log that was replaced": ([9], [], "message_id = gen_random_uuid()", 4),
}


def test_the_oldest_waiting_message_keeps_the_days(connection, store):
    """Days are kept from the oldest waiting message of the handler's own type on."""
    begun(connection, "till")
    store_position(connection, "shop", "shop:command")
    write_aged(connection, store, *((f"done{days}", days) for days in (12, 10, 8, 6)))
    assert run(connection, till(KEPT)) == Counter(handled=4)
    found = {}
    for name, (dead, unread, settled, _) in WAITING.items():
        let_wait(connection, store, dead, unread, settled)
        removed, notes = prune(connection, apply=False)
        assert all("till has yet to handle messages" in note for note in notes), name
        found[name] = removed[TILL], bool(notes)
    assert found == {name: (n, n < 4) for name, (*_, n) in WAITING.items()}
    let_wait(connection, store, [5], [("Pay", "till", 9)])
    assert prune(connection)[0] == {TILL: 2}


def let_wait(connection, store, dead, unread, settled=None):
    """Let messages wait, instead of others: dead letters of these ages, and unread ones."""
    connection.execute("DELETE FROM reservation.dead_letters")
    connection.execute("DELETE FROM message_store.messages WHERE data->>'payId' NOT LIKE 'done%'")
    write_aged(connection, store, *((f"dead{days}", days) for days in dead))
    connection.execute(
        "UPDATE reservation.moves SET position = "
        "(SELECT max(global_position) FROM message_store.messages) WHERE consumer = 'till'"
    )
    connection.execute(
        "INSERT INTO reservation.dead_letters (consumer, category, global_position, message_id, "
        "stream_name, type, state, reason, process) SELECT 'till', %s, global_position, id, "
        "stream_name, type, 'dead', 'x', 'x' FROM message_store.messages "
        "WHERE data->>'payId' LIKE 'dead%%'",
        [COMMANDS],
    )
    if settled:
        connection.execute(f"UPDATE reservation.dead_letters SET {settled}")
    for type_, name, days in unread:
        command = pay(f"x{days}") if type_ == "Pay" else refund(f"x{days}")
        store.write(command, f"{name}:command-123")
        age(connection, f"x{days}", days)


def test_in_a_group_the_partition_furthest_behind_keeps_the_days(connection, store):
    """In a group the partition that is furthest behind decides which days are kept."""
    begun(connection, "till")
    write_aged(connection, store, ("a", 9), ("b", 7))
    run(connection, till(KEPT))
    store_position(connection, "till", COMMANDS, 1, partition=1)
    assert prune(connection)[0] == {TILL: 1}


def test_partitions_are_created_ahead(connection, store):
    """Partitions for coming days are created ahead, and by a consumer that needs one."""

    def partitions():
        rows = connection.execute(
            "SELECT count(*) FROM pg_inherits JOIN pg_class ON oid = inhrelid "
            "WHERE relnamespace = 'reservation'::regnamespace AND relkind = 'r' "
            "AND relname ~ '^processed_[0-9]'"
        )
        return rows.fetchone()[0]

    write_aged(connection, store, ("old", 20), ("older", 10))
    run(connection, till(KEPT))
    assert partitions() == 1  # all days before the first of a new handler
    prune(connection)
    before = partitions()
    for days in (-1, -3, -4):
        write_aged(connection, store, (f"b{days}", days))
        assert run(connection, till(KEPT)) == Counter(handled=1)
    assert partitions() == before + 1


def test_partitions_in_use_are_dropped_the_next_time(connection, store):
    """Pruning waits for no consumer: what one has looked at is left for later."""
    begun(connection, "till")
    write_aged(connection, store, ("a", 7))
    run(connection, till(KEPT))
    with connection.transaction():
        connection.execute("LOCK TABLE reservation.processed_messages IN ACCESS SHARE MODE")
        removed, notes = prune(connection)
        assert removed == {}
        assert "is in use; run this again" in notes[0]
        assert kept(connection) == 1
    assert prune(connection) == ({TILL: 1}, [])


HISTORY = st.lists(
    st.tuples(st.sampled_from(["send", "redeliver", "fail", "prune"]), st.integers(0, 4)),
    min_size=5,
    max_size=10,
)


def handle_histories(connection, examples):
    """Check that each key takes effect once under reissues, redeliveries, failures and pruning."""

    @settings(max_examples=examples)
    @given(history=HISTORY, which=st.sampled_from([BY_KEY, Processed(key="pay_id", keep=9 * DAY)]))
    def check(history, which):
        store, name = MessageStore(connection), f"till{uuid4().hex}"
        sent, fails = set(), set()
        component = till(which, name=name, fails=fails, once_each=True)
        for what, n in history:
            match what:
                case "send" | "fail":
                    store.write(pay(str(n)), f"{name}:command-{n % 2}")
                    sent.add(str(n))
                    fails |= {str(n)} if what == "fail" else set()
                case "redeliver":
                    connection.execute(
                        "UPDATE reservation.moves SET position = greatest(position - %s, 0) "
                        "WHERE consumer = %s",
                        [n, name],
                    )
                case "prune":
                    prune(connection)
            run(connection, component, limit=3)
        assert effects(connection, name) == Counter(sent)

    check()


@pytest.mark.usefixtures("store")
def test_each_key_takes_effect_once_whatever_happens(connection):
    """With few examples; `tests/soak/test_drawn_consumers.py` takes more."""
    handle_histories(connection, 3)
