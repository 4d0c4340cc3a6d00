"""Processed messages: what was handled is recognized for as long as its record is kept."""

import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reservation import MessageStore, Processed
from reservation.errors import (
    DeclarationError,
    ExpiredError,
    HandlerError,
    IdempotenceKeyError,
    SerializationError,
)
from reservation.idempotence.strategy import Incoming
from reservation.maintenance.pruning import prune_processed
from reservation.postgres.connection import connect
from reservation.store.schema.roles import grant
from tests.bank import batch
from tests.once import COMMANDS, SENT, effects, pay, prepare, redeliver, refund, run, till
from tests.processes import EXAMPLES, Started

BY_KEY = Processed(key="pay_id")
DAY = timedelta(days=1)
KEPT = Processed(keep=2 * DAY)
KEPT_BY_KEY = Processed(key="pay_id", keep=2 * DAY)
EVERY = [Processed(), BY_KEY, KEPT, KEPT_BY_KEY]


@pytest.fixture(autouse=True)
def _prepared(connection):
    prepare(connection)


def age(connection, key, days):
    """Have the messages of a key stored some days ago, at noon of that day."""
    connection.execute(
        "UPDATE message_store.messages SET time = (now() AT TIME ZONE 'utc')::date "
        "+ interval '12 hours' - make_interval(days => %s) WHERE data->>'payId' = %s",
        [days, key],
    )


def prune(connection):
    """Prune, and return the number of removed days, and the notes."""
    steps = list(prune_processed(connection, True, 100))
    return sum(step.count for step in steps), [step.note for step in steps if step.note]


def kept(connection):
    return [
        row[0]
        for row in connection.execute(
            "SELECT m.key FROM reservation.processed_messages m ORDER BY global_position"
        )
    ]


@pytest.mark.parametrize("once", EVERY)
def test_a_redelivered_message_has_no_effect(connection, store, once):
    """A redelivered message has no effect, and new messages beside it have theirs."""
    store.write([pay("a"), pay("b")], SENT)
    assert run(connection, till(once)) == Counter(handled=2)
    store.write(pay("c"), SENT)
    for handled in (1, 0):
        redeliver(connection)
        assert run(connection, till(once)) == +Counter(duplicate=3 - handled, handled=handled)
    assert effects(connection) == Counter("abc")


@pytest.mark.parametrize(("once", "times"), [(Processed(), 2), (BY_KEY, 1), (KEPT_BY_KEY, 1)])
def test_only_a_business_key_recognizes_a_reissue_under_a_new_id(connection, store, once, times):
    """Only a business key recognizes a reissue under a new id."""
    store.write(pay("a"), SENT)
    run(connection, till(once))
    store.write(pay("a"), "till:command-7")
    run(connection, till(once))
    assert effects(connection) == Counter(a=times)


@pytest.mark.parametrize("once", [BY_KEY, KEPT_BY_KEY])
def test_two_messages_of_a_key_in_one_batch_take_effect_once(connection, store, once):
    """Of two messages of a key in one batch the first takes effect."""
    store.write([pay("a"), pay("b"), pay("a")], SENT)
    assert run(connection, till(once)) == Counter(handled=2, duplicate=1)
    assert effects(connection) == Counter("ab")


@pytest.mark.parametrize("once", [BY_KEY, KEPT_BY_KEY])
def test_a_key_is_that_of_one_type_and_one_consumer(connection, store, once):
    """The same key of another type or of another consumer is another key."""
    store.write([pay("a"), refund("a")], SENT)
    store.write([pay("a")], "shop:command-1")
    assert run(connection, till(once)) == Counter(handled=2)
    assert run(connection, till(once, name="shop")) == Counter(handled=1)
    redeliver(connection)
    assert run(connection, till(once)) == Counter(duplicate=2)
    assert effects(connection) == Counter({"a": 1, "-a": 1})


def test_parts_of_a_key_are_distinguished(connection, store):
    """Keys of several fields are equal only if each part is."""
    once = Processed(key=["till_id", "pay_id"])
    store.write([pay("1", till="12"), pay("21", till="1"), pay("1", till="12")], SENT)
    assert run(connection, till(once)) == Counter(handled=2, duplicate=1)


def test_a_function_may_take_the_key(connection, store):
    """A key may be made by a function, as in reservations."""
    once = Processed(key=lambda command: command.pay_id.lower())
    store.write([pay("A"), pay("a")], SENT)
    assert run(connection, till(once)) == Counter(handled=1, duplicate=1)


@pytest.mark.parametrize("once", EVERY)
def test_a_failed_message_leaves_no_record(connection, store, once):
    """The record is committed with the effect, or not at all."""
    store.write([pay("a"), pay("b")], SENT)
    with pytest.raises(HandlerError):
        run(connection, till(once, fails={"b"}))
    assert kept(connection) == []
    assert run(connection, till(once)) == Counter(handled=2)
    assert effects(connection) == Counter("ab")


def incoming(store):
    return [Incoming(m, m.decode(type(pay())), "till-123") for m in store.read_category(COMMANDS)]


@pytest.mark.parametrize("once", [BY_KEY, KEPT_BY_KEY])
@pytest.mark.parametrize("days", [0, 1])
def test_of_two_processes_that_handle_a_key_at_once_one_starts_anew(
    connection, database_url, store, once, days
):
    """Of two processes that handle a key at once one runs its batch again."""
    store.write(pay("a"), "till:command-1")
    age(connection, "a", days)
    store.write(pay("a"), "till:command-2")
    first, second = incoming(store)
    with connect(database_url) as own, connect(database_url) as other:
        checks = [once.begin(c, "till", COMMANDS, [m]) for c, m in ((own, first), (other, second))]
        assert not checks[0].is_duplicate(first)
        assert not checks[1].is_duplicate(second)
        checks[0].record()
        own.commit()
        with pytest.raises(SerializationError, match="run it again"):
            checks[1].record()
        other.rollback()
        assert once.begin(other, "till", COMMANDS, [second]).is_duplicate(second)


@pytest.mark.parametrize("once", [BY_KEY, KEPT_BY_KEY])
def test_recording_a_key_waits_for_another_process_that_does(connection, database_url, store, once):
    """A process that records a key waits for another that does, also of another day."""
    begun(connection, "till")
    store.write(pay("0"), SENT)
    run(connection, till(once))
    for n in (1, 2):
        store.write(pay("a"), f"till:command-{n}")
    connection.execute(
        "UPDATE message_store.messages SET time = time - interval '1 day' "
        "WHERE stream_name = 'till:command-1'"
    )
    _, first, second = incoming(store)
    with connect(database_url) as own, connect(database_url) as other:
        checks = [once.begin(c, "till", COMMANDS, [m]) for c, m in ((own, first), (other, second))]
        assert not checks[0].is_duplicate(first)
        assert not checks[1].is_duplicate(second)
        checks[0].record()
        with ThreadPoolExecutor(1) as pool:
            recorded = pool.submit(checks[1].record)
            wait_for(connection, other, recorded)
            own.commit()
            with pytest.raises(SerializationError, match="run it again"):
                recorded.result()


def test_a_process_that_is_paused_in_a_handler_holds_no_locks(connection, database_url, store):
    """A process that is paused in a handler holds no locks."""
    store.write(pay("a"), SENT)
    (message,) = incoming(store)
    with connect(database_url) as paused:
        assert not BY_KEY.begin(paused, "till", COMMANDS, [message]).is_duplicate(message)
        with connection.transaction():
            connection.execute("SET LOCAL lock_timeout = '1s'")
            check = BY_KEY.begin(connection, "till", COMMANDS, [message])
            assert not check.is_duplicate(message)
            check.record()


def test_a_message_refused_for_its_age_is_a_dead_letter(connection, store, database_url, tmp_path):
    """A message refused for its age is a dead letter after one attempt."""
    begun(connection, "many")
    (tmp_path / "many.py").write_text(APP.format(", keep=__import__('datetime').timedelta(1)"))
    connection.execute(
        "UPDATE reservation.processed_handlers SET dropped_until = now() - interval '1 hour'"
    )
    store.write(pay("a"), "many:command-1")
    age(connection, "a", 5)
    with Started(database_url, "--app-dir", str(tmp_path), app="many:many") as started:
        started.wait_for("batch_committed")
        assert started.stop() == 0
    letters = connection.execute("SELECT state, reason FROM reservation.dead_letters")
    assert letters.fetchall() == [("dead", "expired")]
    assert effects(connection, "many") == Counter()


APP = f"""
import sys; sys.path.append({str(EXAMPLES)!r})
from reservation import Processed
from tests.once import till
many = till(Processed(key="pay_id"{{}}), name="many")
"""


@pytest.mark.parametrize("keep", ["", ", keep=__import__('datetime').timedelta(days=9)"])
def test_processes_that_share_a_category_handle_each_key_once(
    connection, store, database_url, tmp_path, keep
):
    """Processes that share a category handle each key once, whichever gets the reissues."""
    (tmp_path / "many.py").write_text(APP.format(keep))
    chance = random.Random(7)
    sends = [str(n) for n in range(100)] * 4
    chance.shuffle(sends)
    arguments = ["--app-dir", str(tmp_path), "--workers", "3", "--batch-size", "10"]
    with Started(database_url, *arguments, app="many:many") as started:
        for n, key in enumerate(sends):
            store.write(pay(key), f"many:command-{n % 17}")
        done = Counter()
        while done.total() < len(sends):
            event = started.wait_for("batch_committed")
            done += Counter({k: event.get(k, 0) for k in ("handled", "duplicate")})
        assert started.stop() == 0
    assert done == Counter(handled=100, duplicate=300)
    assert effects(connection, "many") == Counter(str(n) for n in range(100))


@pytest.mark.parametrize("once", [KEPT, KEPT_BY_KEY])
def test_a_message_older_than_what_is_kept_is_refused(connection, store, once):
    """A message older than the kept records is refused: it may have been handled."""
    begun(connection, "till")
    for days, key in enumerate("abcde"):
        store.write(pay(key), SENT)
        age(connection, key, days)
    assert run(connection, till(once)) == Counter(handled=5)
    assert prune(connection) == (2, [])
    for key, outcome in zip("abcde", [None, None, None, ExpiredError, ExpiredError], strict=True):
        only(connection, key)
        if outcome is None:
            assert run(connection, till(once)) == Counter(duplicate=1)
        else:
            with pytest.raises(outcome, match=r"no longer known, so it may have been handled"):
                run(connection, till(once))
    assert effects(connection) == Counter("abcde")


def begun(connection, *consumers):
    """Let consumers be older than any message, so that each day has its own partition."""
    for consumer in consumers:
        connection.execute(
            "INSERT INTO reservation.processed_handlers (consumer, type, keep, since) "
            "VALUES (%s, 'Pay', '1 day', (now() AT TIME ZONE 'utc')::date - 100)",
            [consumer],
        )


def only(connection, key):
    """Let the consumers read the message of a key, and those after it, again."""
    connection.execute(
        "UPDATE reservation.positions SET position = (SELECT min(global_position) - 1 "
        "FROM message_store.messages WHERE data->>'payId' = %s)",
        [key],
    )
    connection.execute(
        "UPDATE message_store.messages SET stream_name = 'other:command-1', "
        "position = global_position WHERE data->>'payId' <> %s AND stream_name = %s",
        [key, SENT],
    )
    connection.execute(
        "UPDATE message_store.messages SET stream_name = %s WHERE data->>'payId' = %s",
        [SENT, key],
    )


def test_a_message_that_nobody_had_handled_before_is_not_refused_for_its_age(connection, store):
    """A new consumer refuses no message of an old log for its age."""
    store.write([pay("a"), pay("b")], SENT)
    age(connection, "a", 4000)
    assert run(connection, till(KEPT)) == Counter(handled=2)
    redeliver(connection)
    assert run(connection, till(KEPT)) == Counter(duplicate=2)


def test_a_late_reissue_is_recognized_as_long_as_the_first_record_is_kept(connection, store):
    """A late reissue is recognized as long as the record of the first message is kept."""
    begun(connection, "till")
    for days, key, expected in ((2, "a", 0), (3, "b", 1)):
        store.write(pay(key), SENT)
        age(connection, key, days)
        run(connection, till(KEPT_BY_KEY))
        store.write(pay(key), SENT)
        assert run(connection, till(KEPT_BY_KEY)) == Counter(duplicate=1)
        prune(connection)
        store.write(pay(key), SENT)
        assert run(connection, till(KEPT_BY_KEY))["handled"] == expected


def test_a_batch_notices_days_that_are_dropped_meanwhile(connection, database_url, store):
    """A batch that looked at a day dropped meanwhile runs again."""
    store.write(pay("a"), SENT)
    run(connection, till(KEPT))
    store.write(pay("b"), SENT)
    age(connection, "b", 5)
    with connection.transaction():
        (message,) = [m for m in incoming(store) if m.command.pay_id == "b"]
        check = KEPT.begin(connection, "till", COMMANDS, [message])
        assert not check.is_duplicate(message)
        connection.execute(
            "UPDATE reservation.processed_handlers SET dropped_until = now() - interval '3 days'"
        )
        with pytest.raises(SerializationError):
            check.record()


@pytest.mark.parametrize(
    "settled",
    [
        "state = 'handled'",
        "type = 'Other'",
        "consumer = 'shop'",
        "message_id = gen_random_uuid()",  # of a log that was replaced
    ],
)
def test_a_day_stays_while_its_messages_are_not_handled(connection, store, settled):
    """A day is kept while messages of it are unread or dead letters."""
    begun(connection, "till")
    for days, key in ((9, "a"), (7, "b"), (5, "c")):
        store.write(pay(key), SENT)
        age(connection, key, days)
    claimed = batch(connection, COMMANDS, till(KEPT))
    claimed.run(1)
    count, notes = prune(connection)
    assert count == 1
    assert "till has yet to handle messages" in notes[0]
    assert claimed.run(1).counts == Counter(handled=1)
    connection.execute(
        "INSERT INTO reservation.dead_letters (consumer, category, global_position, message_id, "
        "stream_name, type, state, reason, process) SELECT 'till', %s, global_position, id, "
        "stream_name, type, 'dead', 'x', 'x' FROM message_store.messages "
        "WHERE data->>'payId' = 'b'",
        [COMMANDS],
    )
    claimed.run(1)
    assert prune(connection)[0] == 0
    connection.execute(f"UPDATE reservation.dead_letters SET {settled}")
    assert prune(connection) == (2, [])


def test_records_kept_for_ever_are_never_dropped(connection, store):
    """Records that are kept for ever, or longer by another handler, are not dropped."""
    begun(connection, "till", "shop")
    for days, key in ((50, "a"), (40, "b")):
        store.write(pay(key), SENT)
        store.write(pay(key), "shop:command-1")
        age(connection, key, days)
    run(connection, till(Processed()))
    run(connection, till(Processed(keep=45 * DAY), name="shop"))
    assert prune(connection) == (1, [])
    assert len(kept(connection)) == 3


def test_the_time_to_keep_records_may_change(connection, store):
    """Changing how long records are kept forgets nothing that was known."""
    keys = iter("abcdef")
    sent = []
    for once in (Processed(), KEPT, Processed(keep=9 * DAY), Processed()):
        sent.append(next(keys))
        store.write(pay(sent[-1]), SENT)
        redeliver(connection)
        assert run(connection, till(once)) == +Counter(handled=1, duplicate=len(sent) - 1)
        prune(connection)


def test_partitions_are_created_ahead(connection, store):
    """Partitions for coming days are created ahead, and by a consumer that needs one."""
    store.write(pay("a"), SENT)
    run(connection, till(KEPT))
    prune(connection)

    def partitions():
        return connection.execute(
            "SELECT count(*) FROM pg_inherits "
            "WHERE inhparent = 'reservation.processed_for_a_time'::regclass"
        ).fetchone()[0]

    before = partitions()
    for days in (-1, -3, -4):
        store.write(pay(f"b{days}"), SENT)
        age(connection, f"b{days}", days)
        run(connection, till(KEPT))
    assert (before, partitions()) == (4, 5)


def test_partitions_are_dropped_while_consumers_run_or_left_for_later(
    connection, database_url, store
):
    """Pruning waits for no consumer: partitions in use are dropped the next time."""
    begun(connection, "till")
    store.write(pay("a"), SENT)
    age(connection, "a", 7)
    run(connection, till(KEPT))
    (message,) = incoming(store)
    with connect(database_url) as busy:
        KEPT.begin(busy, "till", COMMANDS, [message])
        count, notes = prune(connection)
        assert count == 0
        assert "is in use; run this again" in notes[0]
        assert kept(connection) == [message.message.id]
    assert prune(connection) == (1, [])


def test_the_role_of_a_consumer_may_do_all_of_it(connection, store):
    """The consumer's role may create partitions but not drop them."""
    role = f"processor_{connection.info.dbname}"
    grant(connection, "consumer", role)
    connection.execute(f"GRANT INSERT ON effects TO {role}")
    store.write([pay("a"), pay("b")], SENT)
    try:
        connection.execute(f"SET ROLE {role}")
        run(connection, till(Processed()), limit=1)
        store.write(pay("c"), SENT)
        redeliver(connection)
        assert run(connection, till(KEPT)) == Counter(duplicate=2, handled=1)
    finally:
        connection.execute(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.parametrize(
    ("once", "key", "error", "problem"),
    [
        (BY_KEY, "", IdempotenceKeyError, r"Cannot handle Pay at .*: field pay_id is empty"),
        (Processed(key=lambda c: {}["x"]), "a", HandlerError, "key function for Pay at .* raised"),
        (Processed(key=lambda c: 1.5), "a", IdempotenceKeyError, "is a float"),
    ],
)
def test_a_message_without_a_key_is_named(connection, store, once, key, error, problem):
    """A message without a key is an error that names it."""
    store.write(pay(key), SENT)
    with pytest.raises(error, match=problem):
        run(connection, till(once))
    assert effects(connection) == Counter()


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: till(Processed(key="nothing")), "Pay has no field 'nothing'"),
        (lambda: Processed(key=()), "names no field"),
        (lambda: Processed(keep=timedelta(0)), "not kept at all"),
        (lambda: Processed(keep=-DAY), "not kept at all"),
    ],
)
def test_a_wrong_declaration_of_the_strategy_is_refused(make, problem):
    """A wrong declaration is refused when it is made."""
    with pytest.raises(DeclarationError, match=problem):
        make()


def test_equal_declarations_are_one_strategy(connection, store):
    """Equal declarations are one strategy, so that their handlers are looked up together."""
    assert Processed(key="a", keep=DAY) == Processed(key=["a"], keep=DAY)
    assert len({Processed(), Processed(), Processed(keep=DAY), Processed(key="a")}) == 3
    assert Processed() != Processed(keep=DAY)
    assert Processed(key="a") != Processed(key="b")
    assert Processed() != "Processed()"


HISTORY = st.lists(
    st.tuples(st.sampled_from(["send", "redeliver", "fail", "prune"]), st.integers(0, 4)),
    max_size=25,
)


@settings(max_examples=40)
@given(history=HISTORY, which=st.sampled_from([BY_KEY, Processed(key="pay_id", keep=9 * DAY)]))
def test_each_key_takes_effect_once_whatever_happens(connection, history, which):
    """Each key takes effect once under reissues, redeliveries, failures and pruning."""
    store, name = MessageStore(connection), f"till{uuid4().hex}"
    sent = set()
    for what, n in history:
        match what:
            case "send":
                store.write(pay(str(n)), f"{name}:command-{n % 2}")
                sent.add(str(n))
            case "redeliver":
                connection.execute(
                    "UPDATE reservation.positions SET position = greatest(position - %s, 0) "
                    "WHERE consumer = %s",
                    [n, name],
                )
            case "fail":
                store.write(pay(str(n)), f"{name}:command-{n % 2}")
                sent.add(str(n))
                try:
                    run(connection, till(which, name=name, fails={str(n)}), limit=2)
                except HandlerError:
                    continue
            case "prune":
                prune(connection)
        run(connection, till(which, name=name), limit=3)
    run(connection, till(which, name=name))
    assert effects(connection, name) == Counter(sent)


def test_the_time_of_a_message_may_have_a_zone(connection, store):
    """The time of a message may have a time zone."""
    store.write(pay("a"), SENT)
    connection.execute("SET TIME ZONE 'Asia/Tokyo'")
    (stored,) = incoming(store)
    aware = msgspec.structs.replace(stored.message, time=datetime(2026, 1, 2, 3, tzinfo=UTC))
    zoned = Incoming(aware, stored.command, stored.entity_stream)
    with connection.transaction():
        check = KEPT.begin(connection, "till", COMMANDS, [zoned])
        assert not check.is_duplicate(zoned)
        check.record()
    rows = connection.execute("SELECT time FROM reservation.processed_messages").fetchall()
    assert rows == [(datetime(2026, 1, 2, 3),)]  # noqa: DTZ001  the store's times have no zone


@pytest.fixture
def far_away(monkeypatch):
    """Let this process be in another time zone than UTC."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_the_time_of_a_message_is_kept_as_it_is_stored(connection, store, far_away):
    """The time of a message is kept as stored, whatever the zone of the process."""
    store.write(pay("a"), SENT)
    run(connection, till(KEPT))
    assert connection.execute(
        "SELECT count(*) FROM reservation.processed_messages p "
        "JOIN message_store.messages m USING (global_position, time)"
    ).fetchone() == (1,)


@pytest.mark.parametrize("once", [BY_KEY, KEPT_BY_KEY])
def test_records_of_other_types_and_consumers_do_not_count(connection, store, once):
    """Records of other types and consumers are not taken for those of a message."""
    store.write(pay("z"), "shop:command-1")
    assert run(connection, till(once, name="shop")) == Counter(handled=1)
    store.write([refund("z"), pay("a"), refund("a"), pay("z")], SENT)
    assert run(connection, till(once), limit=1) == Counter(handled=4)
    store.write([pay("a"), pay("b")], "shop:command-1")
    assert run(connection, till(once, name="shop")) == Counter(handled=2)


@pytest.mark.parametrize("once", [BY_KEY, KEPT_BY_KEY])
def test_a_message_is_a_duplicate_of_its_reissue_that_was_handled_first(connection, store, once):
    """A message is a duplicate if its reissue in another partition was handled first."""
    begun(connection, "till")
    store.write(pay("a"), SENT)
    assert run(connection, till(once)) == Counter(handled=1)
    store.write(pay("a"), SENT)
    connection.execute(
        "UPDATE message_store.messages SET time = time - interval '2 days' WHERE position = 1"
    )
    assert run(connection, till(once)) == Counter(duplicate=1)


def test_a_reissue_that_was_handled_meanwhile_is_detected(connection, store):
    """A reissue that another process handled meanwhile is detected."""
    begun(connection, "till")
    store.write([pay("a"), pay("a")], SENT)
    connection.execute(
        "UPDATE message_store.messages SET time = time - interval '2 days' WHERE position = 0"
    )
    older, newer = incoming(store)
    with connection.transaction():
        check, other = (
            KEPT_BY_KEY.begin(connection, "till", COMMANDS, [message]) for message in (older, newer)
        )
        assert not check.is_duplicate(older)
        assert not other.is_duplicate(newer)
        other.record()
        with pytest.raises(SerializationError):
            check.record()


def test_the_first_moment_of_what_is_kept_is_kept(connection, store):
    """A message at the very start of the kept days is handled and recognized."""
    begun(connection, "till")
    store.write(pay("a"), SENT)
    begins = "(now() AT TIME ZONE 'utc')::date - interval '1 day'"
    connection.execute(f"UPDATE message_store.messages SET time = {begins}")
    connection.execute(f"UPDATE reservation.processed_handlers SET dropped_until = {begins}")
    assert run(connection, till(KEPT)) == Counter(handled=1)
    redeliver(connection)
    assert run(connection, till(KEPT)) == Counter(duplicate=1)


def test_of_a_batch_only_what_is_too_old_is_refused(connection, store):
    """Of a batch only messages that are too old are refused, in whatever place."""
    begun(connection, "till")
    connection.execute(
        "UPDATE reservation.processed_handlers SET dropped_until = now() - interval '3 days'"
    )
    for key, days in (("a", 0), ("b", 9), ("c", 0)):
        store.write(pay(key), SENT)
        age(connection, key, days)
    batch_ = incoming(store)
    with connection.transaction():
        check = KEPT.begin(connection, "till", COMMANDS, batch_)
        assert not check.is_duplicate(batch_[0])
        assert not check.is_duplicate(batch_[2])
        with pytest.raises(ExpiredError, match="global position 2"):
            check.is_duplicate(batch_[1])


def test_a_consumer_that_is_new_needs_one_partition_for_an_old_log(connection, store):
    """A new consumer of an old log needs one partition for all days before its first."""
    for days, key in enumerate("abcde", start=10):
        store.write(pay(key), SENT)
        age(connection, key, days)
    assert run(connection, till(KEPT)) == Counter(handled=5)
    assert connection.execute(
        "SELECT count(*) FROM pg_inherits "
        "WHERE inhparent = 'reservation.processed_for_a_time'::regclass"
    ).fetchone() == (1,)


def test_days_are_dropped_of_each_handler_for_itself(connection, store):
    """Days are dropped for each handler by itself."""
    begun(connection, "till", "shop")
    for name, days in (("till", 9), ("till", 7), ("shop", 7), ("shop", 1)):
        store.write(pay(f"{name}{days}"), f"{name}:command-123")
        age(connection, f"{name}{days}", days)
    run(connection, till(KEPT))
    run(connection, till(Processed(keep=30 * DAY), name="shop"))
    timeout = connection.execute("SHOW lock_timeout").fetchone()
    assert prune(connection) == (2, [])
    assert connection.execute("SHOW lock_timeout").fetchone() == timeout
    assert dict(
        connection.execute(
            "SELECT consumer, dropped_until IS NULL FROM reservation.processed_handlers"
        ).fetchall()
    ) == {"till": False, "shop": True}
    run(connection, till(KEPT, name="shop"))
    store.write(pay("new"), "shop:command-123")
    run(connection, till(KEPT, name="shop"))
    assert prune(connection) == (1, [])


def test_a_handler_that_keeps_for_ever_by_now_loses_nothing(connection, store):
    """A handler that now keeps records for ever loses none of before."""
    begun(connection, "till")
    store.write(pay("a"), SENT)
    age(connection, "a", 9)
    run(connection, till(KEPT))
    store.write(pay("b"), SENT)
    run(connection, till(Processed()))
    store.write(pay("c"), SENT)
    assert prune(connection) == (0, [])


@pytest.mark.parametrize("days", [2, 1, 0])
def test_waiting_messages_are_reported_only_if_they_keep_more_days(connection, store, days):
    """Waiting messages are reported only where they keep more days than asked for."""
    begun(connection, "till")
    store.write(pay("a"), SENT)
    age(connection, "a", 9)
    run(connection, till(KEPT))
    store.write(pay("b"), SENT)
    age(connection, "b", days)
    assert prune(connection) == (1, [])


@pytest.mark.parametrize(
    ("dead", "unread", "dropped"),
    [
        ([], [], 4),
        ([], [("Pay", "till", 9), ("Pay", "till", 5)], 2),
        ([], [("Pay", "till", 5), ("Pay", "till", 9)], 2),
        ([9, 5], [], 2),
        ([5, 9], [], 2),
        ([9], [("Pay", "till", 5)], 2),
        ([5], [("Pay", "till", 9)], 2),
        ([], [("Refund", "till", 9)], 4),
        ([], [("Pay", "shop", 9)], 4),
        ([], [("Pay", "nobody", 9)], 4),
    ],
)
def test_the_oldest_waiting_message_keeps_the_days(connection, store, dead, unread, dropped):
    """Days are kept from the oldest waiting message of the handler's own type on."""
    begun(connection, "till")
    connection.execute(
        "INSERT INTO reservation.positions (consumer, category, partition, position, epoch) "
        "VALUES ('shop', 'shop:command', 0, 0, 1)"
    )
    for days in (12, 10, 8, 6):
        store.write(pay(f"done{days}"), SENT)
        age(connection, f"done{days}", days)
    assert run(connection, till(KEPT)) == Counter(handled=4)
    for days in dead:
        store.write(pay(f"dead{days}"), SENT)
        age(connection, f"dead{days}", days)
    redeliver(connection, to=4 + len(dead))
    connection.execute(
        "INSERT INTO reservation.dead_letters (consumer, category, global_position, message_id, "
        "stream_name, type, state, reason, process) SELECT 'till', %s, global_position, id, "
        "stream_name, type, 'dead', 'x', 'x' FROM message_store.messages "
        "WHERE global_position > 4",
        [COMMANDS],
    )
    for type_, name, days in unread:
        command = pay(f"x{days}") if type_ == "Pay" else refund(f"x{days}")
        store.write(command, f"{name}:command-123")
        age(connection, f"x{days}", days)
    assert prune(connection)[0] == dropped


def test_in_a_group_the_partition_furthest_behind_keeps_the_days(connection, store):
    """In a group the partition that is furthest behind decides which days are kept."""
    begun(connection, "till")
    for days, key in ((9, "a"), (7, "b")):
        store.write(pay(key), SENT)
        age(connection, key, days)
    run(connection, till(KEPT))
    connection.execute(
        "INSERT INTO reservation.positions (consumer, category, partition, position, epoch) "
        "VALUES ('till', %s, 1, 1, 1)",
        [COMMANDS],
    )
    assert prune(connection)[0] == 1


def test_a_handlers_period_affects_no_other(connection, store):
    """A change of one handler's period affects no other consumer or type."""
    for name in ("till", "shop"):
        store.write([pay("a"), refund("a")], f"{name}:command-123")
        run(connection, till(Processed(keep=9 * DAY), name=name))
    store.write(pay("b"), SENT)
    run(connection, till(KEPT))
    assert set(
        connection.execute("SELECT consumer, type, keep FROM reservation.processed_handlers")
    ) == {
        ("till", "Pay", 2 * DAY),
        ("till", "Refund", 9 * DAY),
        ("shop", "Pay", 9 * DAY),
        ("shop", "Refund", 9 * DAY),
    }


def test_the_numbers_of_handlers_are_used_up_by_new_ones_only(connection, store):
    """Only new handlers, not every batch, draw a number from the sequence."""
    store.write([pay(f"p{n}") for n in range(5)], SENT)
    run(connection, till(KEPT), limit=1)
    store.write(pay("a"), "shop:command-123")
    run(connection, till(KEPT, name="shop"))
    assert connection.execute(
        "SELECT handler FROM reservation.processed_handlers ORDER BY 1"
    ).fetchall() == [(1,), (2,)]


def test_recording_a_key_blocks_no_other_handler(connection, database_url, store):
    """Recording a key blocks no handler of another consumer or type."""
    store.write([pay("a"), refund("a")], SENT)
    store.write(pay("z"), "shop:command-1")
    run(connection, till(BY_KEY))
    run(connection, till(BY_KEY, name="shop"))
    store.write([pay("b"), refund("b")], SENT)
    first, _, payment, repayment = incoming(store)
    with connect(database_url) as other:
        check = BY_KEY.begin(other, "till", COMMANDS, [payment])
        assert not check.is_duplicate(payment)
        check.record()
        connection.execute("SET lock_timeout = '100ms'")
        for consumer, message in (("till", repayment), ("shop", first)):
            with connection.transaction():
                check = BY_KEY.begin(connection, consumer, COMMANDS, [message])
                assert not check.is_duplicate(message)
                check.record()


def kept_days(connection):
    """Return which handlers have partitions, each with the days after theirs."""
    days = {}
    for (name,) in connection.execute(
        "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
        "WHERE i.inhparent = 'reservation.processed_for_a_time'::regclass ORDER BY 1"
    ).fetchall():
        _, handler, _, until = name.split("_")
        days.setdefault(int(handler), []).append(until)
    return days


MAKE = "SELECT reservation.make_processed_partition(%s, %s)"


def test_a_partition_begins_where_its_own_handler_does(connection):
    """Each handler's first partition covers all days before its first record."""
    connection.execute(
        "INSERT INTO reservation.processed_handlers (consumer, type, keep, since) VALUES "
        "('a', 'Pay', '1 day', '2026-01-01'), ('b', 'Pay', '1 day', '2026-03-01'), "
        "('c', 'Pay', '1 day', NULL), ('d', 'Pay', '1 day', NULL)"
    )
    for handler in (1, 2):
        assert connection.execute(MAKE, [handler, "2026-02-01"]).fetchone() == (True,)
        assert connection.execute(MAKE, [handler, "2026-02-01"]).fetchone() == (False,)
    assert kept_days(connection) == {1: ["20260202"], 2: ["20260301"]}
    connection.execute(
        "INSERT INTO reservation.processed_messages (handler, key, time, global_position, for_ever)"
        " VALUES (2, 'old', '2020-01-01', 1, false)"
    )
    connection.execute(MAKE, [3, "2026-02-01"])
    begins = (
        "SELECT handler, since = (now() AT TIME ZONE 'utc')::date "
        "FROM reservation.processed_handlers ORDER BY 1"
    )
    first = connection.execute(begins).fetchall()
    assert first == [(1, False), (2, False), (3, True), (4, None)]
    prune(connection)
    assert connection.execute(begins).fetchall() == [*first[:3], (4, True)]


def test_a_partition_is_created_once(connection, database_url):
    """Two processes that create the same partition create it once."""
    begun(connection, "till")
    with connect(database_url) as own, connect(database_url, autocommit=True) as other:
        today = datetime.now(UTC).date()
        assert own.execute(MAKE, [1, today]).fetchone() == (True,)
        with ThreadPoolExecutor(1) as pool:
            pruned = pool.submit(prune, other)
            wait_for(connection, other, pruned)
            own.commit()
            assert pruned.result() == (0, [])
    assert len(kept_days(connection)[1]) == 4


def wait_for(connection, other, work):
    """Wait until the work of another connection waits for a lock."""
    waiting = "SELECT FROM pg_locks WHERE pid = %s AND NOT granted"
    while not connection.execute(waiting, [other.info.backend_pid]).fetchall():
        assert not work.done()


@pytest.mark.parametrize("once", EVERY)
def test_the_first_messages_of_a_type_may_come_to_two_processes_at_once(
    connection, database_url, store, once
):
    """Two processes may record the first messages of a type at once."""
    store.write([pay("a"), pay("b")], SENT)
    messages = incoming(store)
    with connect(database_url) as own, connect(database_url) as other:
        checks = [
            once.begin(c, "till", COMMANDS, [m])
            for c, m in zip((own, other), messages, strict=True)
        ]
        for check, message in zip(checks, messages, strict=True):
            assert not check.is_duplicate(message)
        checks[0].record()
        with ThreadPoolExecutor(1) as pool:
            recorded = pool.submit(checks[1].record)
            wait_for(connection, other, recorded)
            own.commit()
            recorded.result()
        other.commit()
    assert len(kept(connection)) == 2


def test_days_are_created_for_the_handlers_that_need_them(connection, store):
    """Days are created only for the handlers that need them."""
    begun(connection, "shop", "till")
    connection.execute(
        "INSERT INTO reservation.processed_handlers (consumer, type, keep, since) "
        "SELECT consumer, 'Refund', keep, since FROM reservation.processed_handlers "
        "WHERE consumer = 'till'"
    )
    store.write(pay("a"), SENT)
    assert run(connection, till(KEPT)) == Counter(handled=1)
    assert list(kept_days(connection)) == [2]


@pytest.mark.parametrize("once", [BY_KEY, KEPT_BY_KEY])
def test_a_type_may_be_added_to_a_running_component(connection, store, once):
    """A type added to a running component is recorded from its first message on."""
    store.write(pay("a"), SENT)
    assert run(connection, till(once)) == Counter(handled=1)
    store.write([refund("a"), refund("a"), pay("a")], SENT)
    assert run(connection, till(once)) == Counter(handled=1, duplicate=2)
