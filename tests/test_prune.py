"""``reservation prune``: what is no longer needed is removed, and nothing else."""

import hashlib
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from bank import account
from bank.messages import Deposit
from reservation import Component, Processed
from reservation.maintenance import pruning
from reservation.maintenance.pruning import (
    Portion,
    Pruned,
    prune_archived,
    prune_processed,
    prune_reservations,
)
from reservation.postgres.connection import connect
from tests.bank import RESERVED, batch, batches, drain
from tests.commands import invoke_cli
from tests.controls import COMMANDS, deposit, open_
from tests.once import SENT, effects, pay, prepare, run, till

SENT_TO = "account:command"
OLD = ["bank:account", "--reservations-older-than", "90d"]


@pytest.fixture
def cli(database_url):
    """Give a function that runs the command to its end."""

    def prune(*arguments):
        return invoke_cli(
            "prune", *arguments, env={"RESERVATION_DATABASE_URL": database_url, "COLUMNS": "200"}
        )

    return prune


def age(connection, stream_name, days, *, key=None):
    """Have messages stored some days ago: those of a stream, or of a key in it."""
    connection.execute(
        "UPDATE message_store.messages SET time = (now() AT TIME ZONE 'utc') "
        "- make_interval(days => %s) "
        "WHERE stream_name LIKE %s AND (%s::text IS NULL OR data->>'payId' = %s)",
        [days, stream_name, key, key],
    )


def reserved(store):
    return [m.stream_name.partition("+")[2] for m in store.read_category(RESERVED)]


def process_some(connection, store):
    """Have a handler that keeps a day of messages process some of the last days."""
    prepare(connection)
    connection.execute(
        "INSERT INTO reservation.processed_handlers (consumer, type, keep, since) "
        "VALUES ('till', 'Pay', '1 day', (now() AT TIME ZONE 'utc')::date - 100)"
    )
    for days in range(5):
        store.write(pay(str(days)), SENT)
        age(connection, SENT, days, key=str(days))
    run(connection, till(Processed(keep=timedelta(days=1))))


def test_nothing_is_removed_without_apply(connection, store, cli):
    """Without `--apply` nothing is removed; the output says what would be."""
    process_some(connection, store)
    count = "SELECT count(*) FROM reservation.processed_messages"
    printed = cli()
    assert printed.returncode == 0, printed.stderr
    assert printed.stdout == (
        "processed messages of till Pay: 3 days would be removed\n"
        "Nothing is changed; remove it with --apply.\n"
    )
    assert connection.execute(count).fetchone() == (5,)
    done = cli("--apply", "--json")
    pruned = [{"kind": "processed messages", "of": "till Pay", "count": 3, "unit": "days"}]
    assert json.loads(done.stdout) == {"applied": True, "pruned": pruned, "kept": []}
    assert connection.execute(count).fetchone() == (2,)
    assert cli("--apply").stdout == "Nothing was to be removed.\n"
    assert cli("--json").stdout == '{"applied": false, "pruned": [], "kept": []}\n'


def partitions(connection):
    """Return how many days of processed messages have a partition."""
    return connection.execute(
        "SELECT count(*) FROM pg_inherits "
        "WHERE inhparent = 'reservation.processed_for_a_time'::regclass"
    ).fetchone()[0]


def test_days_of_every_handler_are_listed_and_kept(connection, store):
    """A dry run lists the days of every handler and drops or creates none."""
    process_some(connection, store)
    connection.execute(
        "INSERT INTO reservation.processed_handlers (consumer, type, keep, since) "
        "VALUES ('a', 'None', '1 day', now()), ('z', 'None', '1 day', now())"
    )
    other = till(Processed(keep=timedelta(days=1)), name="other")
    connection.execute(
        "INSERT INTO reservation.processed_handlers (consumer, type, keep, since) "
        "VALUES ('other', 'Pay', '1 day', (now() AT TIME ZONE 'utc')::date - 100)"
    )
    store.write(pay("o"), "other:command-1")
    age(connection, "other:command-1", 3)
    run(connection, other)
    before = partitions(connection)
    results = sorted(prune_processed(connection, False, 100), key=lambda result: result.of)
    assert results == [
        Pruned("processed messages", "other Pay", 1, "days"),
        Pruned("processed messages", "till Pay", 3, "days"),
    ]
    assert partitions(connection) == before


def test_a_day_in_use_keeps_the_later_ones(connection, store, database_url, monkeypatch):
    """A day in use is reported once, and the handler's later days are kept too."""
    process_some(connection, store)
    monkeypatch.setattr(pruning, "_ATTEMPTS", 2)
    with connect(database_url) as busy:
        busy.execute("SELECT FROM reservation.processed_for_a_time")
        (result,) = prune_processed(connection, True, 100)
        assert (result.count, "is in use; run this again" in result.note) == (0, True)
    assert [result.count for result in prune_processed(connection, True, 100)] == [1, 1, 1]


def test_a_day_that_is_in_use_for_a_moment_is_dropped(connection, store, database_url, monkeypatch):
    """A day that is in use for a moment is dropped at the next try, without a lock meanwhile."""
    process_some(connection, store)
    execute, tries, raised = connection.execute, [], []
    with connect(database_url) as busy:
        busy.execute("SELECT FROM reservation.processed_for_a_time")

        def watched(query, parameters=None):
            if b"lock_timeout" in query:
                tries.append(query)
                if len(tries) == 2:
                    busy.rollback()
            elif b"SET dropped_until" in query:
                raised.append(query)
            return execute(query, parameters)

        with monkeypatch.context() as patch:
            patch.setattr(connection, "execute", watched)
            assert [result.count for result in prune_processed(connection, True, 100)] == [1, 1, 1]
    assert (len(tries), len(raised)) == (4, 3)


def test_progress_is_printed_with_what_stays_and_why(connection, store, cli):
    """Progress and reasons are printed beside the result."""
    process_some(connection, store)
    store.write(pay("late"), SENT)
    age(connection, SENT, 3, key="late")
    done = cli("--apply")
    assert done.stderr == "processed messages of till Pay: 1 day\n"
    removed, stays = done.stdout.splitlines()
    assert removed == "processed messages of till Pay: 1 day removed"
    assert stays.endswith("on stays: till has yet to handle messages of then")
    assert len(json.loads(cli("--json").stdout)["kept"]) == 1


def test_reservations_are_removed_only_on_request(connection, store, cli):
    """Reservations are removed only on request, and a note says what reissues do then."""
    store.write([open_(), deposit("a"), deposit("b"), deposit("c")], COMMANDS)
    drain(connection)
    age(connection, "%+a", 100)
    age(connection, "%+b", 91)
    age(connection, "%+c", 89)
    assert cli("--apply").stdout == "Nothing was to be removed.\n"
    printed = cli(*OLD)
    assert "reservations of accountTransaction: 2 streams would be removed" in printed.stdout
    assert "takes effect again" in printed.stderr
    assert reserved(store) == ["a", "b", "c"]
    done = cli(*OLD, "--apply", "--batch-size", "1", "--json")
    result = json.loads(done.stdout)
    assert result["pruned"] == [
        {"kind": "reservations", "of": RESERVED, "count": 2, "unit": "streams"}
    ]
    assert "takes effect again" in result["warning"]
    assert reserved(store) == ["c"]
    assert "takes effect again" in " ".join(cli("--help").stdout.split())


def test_a_reissue_of_what_was_pruned_takes_effect_again(connection, store):
    """A reissue of a pruned reservation takes effect again."""
    store.write([open_(), deposit("a"), deposit("b")], COMMANDS)
    drain(connection)
    age(connection, "%+a", 100)
    assert prune(connection) == 1
    store.write([deposit("a"), deposit("b")], COMMANDS)
    drain(connection)
    types = [m.type for m in store.read_stream("account-123")]
    assert Counter(types) == Counter(Opened=1, Deposited=3)


def prune(connection, *, component=account, limit=100, apply=True):
    steps = prune_reservations(component, timedelta(days=90))(connection, apply, limit)
    return sum(step.count for step in steps)


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_unhandled_messages_are_kept(connection, store, limit):
    """Unhandled messages and those of dead letters are kept, whatever their age."""
    store.write([open_(), *(deposit(key) for key in "abcde")], COMMANDS)
    batch(connection, "account:command").run(100)
    age(connection, f"{RESERVED}-%", 100)
    assert prune(connection, limit=limit) == 0
    batch(connection, RESERVED).run(4)  # and it is at d
    for key, state in (("a", "parked"), ("b", "handled")):
        connection.execute(
            "INSERT INTO reservation.dead_letters (consumer, category, global_position, "
            "message_id, stream_name, type, state, reason, process) "
            "SELECT 'account', %s, global_position, id, stream_name, type, %s, 'x', 'x' "
            "FROM message_store.messages WHERE stream_name = %s",
            [RESERVED, state, f"{RESERVED}-123+{key}"],
        )
    assert prune(connection, limit=limit) == 2
    assert reserved(store) == ["a", "d", "e"]
    batches(connection)
    assert len(list(store.read_stream("account-123"))) == 6


def test_a_stream_is_pruned_as_a_whole_or_not_at_all(connection, store):
    """A stream with a young or unread message is kept as a whole."""
    store.write([open_(), deposit("a"), deposit("b")], COMMANDS)
    drain(connection)
    for key in "az":
        store.write(deposit(key), f"{RESERVED}-123+{key}")
    connection.execute(
        "UPDATE message_store.messages SET time = time - interval '100 days' WHERE position = 0"
    )
    move = "UPDATE reservation.positions SET position = %s WHERE category = %s"
    connection.execute(move, [10, RESERVED])  # where z is
    assert prune(connection) == 1
    assert prune(connection) == 0
    age(connection, "%+a", 100)
    connection.execute(move, [5, RESERVED])
    assert prune(connection) == 0
    connection.execute(move, [10, RESERVED])
    assert prune(connection) == 1
    assert reserved(store) == ["z"]


def test_in_a_group_the_partition_furthest_behind_decides(connection, store):
    """In a group the partition that is furthest behind decides what is kept."""
    store.write([open_(), deposit("a")], COMMANDS)
    drain(connection)
    age(connection, "%+a", 100)
    connection.execute(
        "INSERT INTO reservation.positions (consumer, category, partition, position) "
        "VALUES ('account', %s, 1, 0)",
        [RESERVED],
    )
    assert prune(connection) == 0


def test_reservations_that_no_consumer_has_read_are_kept(connection, store):
    """Reservations of another component, or from before the first start, are kept."""
    other = Component("savings", id="account_id")
    other.reserve(Deposit, into=RESERVED, key="deposit_id")
    for key in "az":
        store.write(deposit(key), f"{RESERVED}-123+{key}")
    age(connection, "%+a", 100)
    assert prune(connection) == 0
    assert prune(connection, component=other) == 0
    drain(connection)
    assert prune(connection, component=other) == 0
    connection.execute(
        "INSERT INTO reservation.positions (consumer, category, partition, position) "
        "VALUES ('savings', %s, 0, 0)",
        [RESERVED],
    )
    assert prune(connection, component=other) == 0
    assert prune(connection) == 1


@pytest.mark.parametrize("limit", [1, 2, 4])
def test_a_dry_run_counts_each_stream_once(connection, store, limit):
    """A dry run counts each stream once, however small its batches."""
    store.write([open_(), *(deposit(key) for key in "abcde")], COMMANDS)
    drain(connection)
    look = prune_reservations(account, timedelta(days=90))
    assert list(look(connection, False, limit)) == []
    age(connection, f"{RESERVED}-%", 100)
    assert prune(connection, limit=limit, apply=False) == 4
    assert reserved(store) == [*"abcde"]


@pytest.mark.parametrize(
    ("consumer", "category"), [("savings", RESERVED), ("account", "account:command")]
)
def test_dead_letters_of_others_keep_nothing(connection, store, consumer, category):
    """Dead letters of another consumer or category keep nothing."""
    store.write([open_(), deposit("a"), deposit("z")], COMMANDS)
    drain(connection)
    age(connection, "%+a", 100)
    connection.execute(
        "INSERT INTO reservation.dead_letters (consumer, category, global_position, "
        "message_id, stream_name, type, state, reason, process) "
        "SELECT %s, %s, global_position, id, stream_name, type, 'dead', 'x', 'x' "
        "FROM message_store.messages WHERE stream_name LIKE %s",
        [consumer, category, f"{RESERVED}-%"],
    )
    assert prune(connection) == 1


def test_the_first_message_of_all_can_be_pruned(connection, store):
    """A copy that is the first message of the store can be pruned."""
    for key in "az":
        store.write(deposit(key), f"{RESERVED}-123+{key}")
    connection.execute(
        "INSERT INTO reservation.positions (consumer, category, partition, position) "
        "VALUES ('account', %s, 0, 2)",
        [RESERVED],
    )
    age(connection, "%+a", 100)
    assert prune(connection) == 1


def test_pruning_can_be_interrupted_and_continued(connection, store):
    """An interrupted prune keeps its progress and can be continued."""
    store.write([open_(), *(deposit(str(n)) for n in range(9))], COMMANDS)
    drain(connection)
    age(connection, f"{RESERVED}-%", 100)
    steps = prune_reservations(account, timedelta(days=90))(connection, True, 2)
    assert next(steps) == Pruned("reservations", RESERVED, 2, "streams")
    next(steps)
    steps.close()
    assert len(reserved(store)) == 5
    assert prune(connection, limit=2) == 4


def test_pruning_waits_for_no_consumer(connection, store, database_url):
    """A prune waits for no consumer that is writing."""
    store.write([open_(), deposit("a"), deposit("z")], COMMANDS)
    drain(connection)
    age(connection, "%+a", 100)
    with connect(database_url) as busy:
        busy.execute(
            "SELECT reservation.lock_categories(ARRAY['account-1', %s])", [f"{RESERVED}-1"]
        )
        busy.execute("SELECT FROM reservation.positions FOR UPDATE")
        connection.execute("SET lock_timeout = '2s'")
        assert prune(connection) == 1


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["bank:account"], None),
        (
            ["--reservations-older-than", "90d"],
            "--reservations-older-than needs APP, such as bank:a",
        ),
        (
            ["bank:account", "--reservations-older-than", "90"],
            "'90' is not a time span; write a number",
        ),
        (
            ["bank:account", "--reservations-older-than", "0d"],
            "'0d' is out of range; write a time span from 1h",
        ),
        (["bank:account", "--reservations-older-than", "99999d"], None),
        (["bank:account", "--reservations-older-than", "36h"], None),
    ],
)
def test_invalid_options_are_refused(cli, arguments, problem):
    """Invalid ages and combinations of options are refused."""
    done = cli(*arguments)
    assert done.returncode == (2 if problem else 0), done.stderr
    assert (problem or "Nothing is to be removed.") in done.stderr + done.stdout


def test_messages_of_a_till_take_effect_once_while_it_is_pruned(connection, store, cli):
    """Messages take effect once while the command prunes the consumer's records."""
    process_some(connection, store)
    assert cli("--apply").returncode == 0
    connection.execute("UPDATE reservation.positions SET position = 0")
    connection.execute("DELETE FROM message_store.messages WHERE data->>'payId' IN ('2', '3', '4')")
    assert run(connection, till(Processed(keep=timedelta(days=1)))) == Counter(duplicate=2)
    assert effects(connection) == Counter("01234")


class Everything:
    """An archive that has all messages of a store up to a global position, but some."""

    def __init__(self, connection, up_to, but=()):
        self._connection = connection
        self._up_to = up_to
        self._but = list(but)
        self._read = {}

    def _rows(self, category):
        if category not in self._read:  # it stays as it is, whatever becomes of the store
            self._read[category] = self._stored(category)
        return self._read[category]

    def _stored(self, category):
        return self._connection.execute(
            "SELECT global_position, id, stream_name, position, type, "
            "(extract(epoch FROM time) * 1000000)::bigint, data::text, metadata::text "
            "FROM message_store.messages WHERE message_store.category(stream_name) = %s "
            "AND global_position <= %s AND NOT global_position = ANY(%s) ORDER BY global_position",
            [category, self._up_to, self._but],
        ).fetchall()

    def head(self, category):
        return (self._rows(category) or [(0, None)])[-1][:2]

    def portions(self, category, number):
        rows = self._rows(category)
        for n in range(0, len(rows), number):
            positions, *columns = zip(*rows[n : n + number], strict=True)
            messages = zip(*columns, strict=True)
            yield Portion(list(positions), [self._digest(message) for message in messages])

    def _digest(self, message):
        texts = ["-" if field is None else f"{len(str(field))}:{field}" for field in message]
        return hashlib.sha256("".join(texts).encode()).hexdigest()


# What is changed of a message, beside its global position, which is how it is found.
CHANGES = [
    "stream_name = stream_name || '9'",
    "position = position + 77",
    "type = 'Withdraw'",
    """data = jsonb_set(data, '{amount}', '"99"')""",
    "data = NULL",
    """metadata = '{"properties": {}}'""",
    "id = gen_random_uuid()",
    "time = time + interval '1 microsecond'",
    "time = 'infinity'",
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("limit", [1, 100])
def test_messages_that_differ_from_the_archive_are_kept_and_named(connection, store, change, limit):
    """Messages that differ from the archive are kept and named; the others are removed."""
    store.write([open_(), *(deposit(key) for key in "abcd")], COMMANDS)
    drain(connection)
    archive = Everything(connection, 4)
    archive.head(SENT_TO)
    connection.execute(
        f"UPDATE message_store.messages SET {change} WHERE global_position IN (2, 4)"
    )
    steps = list(prune_archived(account, archive)(connection, True, limit))
    assert [position for step in steps for position in step.differing] == [2, 4]
    assert sum(step.count for step in steps) == 2
    assert {2, 4} <= {
        row[0] for row in connection.execute("SELECT global_position FROM message_store.messages")
    }


def test_a_message_that_another_transaction_changes_is_kept(connection, store, database_url):
    """A message that another transaction changes is compared again when it is deleted."""
    store.write([open_(), *(deposit(key) for key in "abcd")], COMMANDS)
    drain(connection)
    archive = Everything(connection, 4)
    archive.head(SENT_TO)
    with connect(database_url) as other, ThreadPoolExecutor() as executor:
        other.execute("UPDATE message_store.messages SET data = '{}' WHERE global_position = 2")
        steps = executor.submit(lambda: [*prune_archived(account, archive)(connection, True, 100)])
        waiting = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
        while not other.execute(waiting, [connection.info.backend_pid]).fetchall():
            assert not steps.done()
        other.commit()
        assert [step.count for step in steps.result()] == [2]
    assert positions(connection, SENT_TO)[0] == 2


def test_a_reservation_that_differs_from_the_archive_is_kept_and_named(connection, store):
    """A reservation that differs from the archive is kept and named."""
    store.write([open_(), deposit("a"), deposit("b")], COMMANDS)
    drain(connection)
    (first, *_) = positions(connection, RESERVED)
    archive = Everything(connection, 100)
    archive.head(RESERVED)
    connection.execute(
        "UPDATE message_store.messages SET data = '{}' WHERE global_position = %s", [first]
    )
    steps = list(prune_archived(account, archive, timedelta(0))(connection, True, 100))
    assert [step.differing for step in steps if step.of == RESERVED] == [(first,)]
    assert first in positions(connection, RESERVED)


def prune_everything(connection, up_to, *, but=(), older_than=None, limit=100, apply=True):
    """Prune with such an archive; return the number of removed messages by category."""
    steps = prune_archived(account, Everything(connection, up_to, but), older_than)
    totals = Counter()
    for step in steps(connection, apply, limit):
        totals[step.of] += step.count
    return totals


def positions(connection, category):
    """Return the global positions that a category still has."""
    rows = connection.execute(
        "SELECT global_position FROM message_store.messages "
        "WHERE message_store.category(stream_name) = %s ORDER BY 1",
        [category],
    )
    return [row[0] for row in rows]


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_archived_commands_are_removed_but_the_last_of_each_stream(connection, store, limit):
    """Archived commands are removed but for the last of each stream, which has its position."""
    store.write([open_(), deposit("a"), deposit("b"), deposit("c")], COMMANDS)
    store.write([deposit("d"), deposit("e")], "account:command-456")
    batches(connection)
    before = positions(connection, RESERVED)
    assert prune_everything(connection, 6, apply=False) == {SENT_TO: 4}
    assert prune_everything(connection, 6, limit=limit) == {SENT_TO: 4}
    assert positions(connection, SENT_TO) == [4, 6]
    assert positions(connection, RESERVED) == before
    assert prune_everything(connection, 6) == {}
    assert store.write(deposit("f"), COMMANDS) == 4
    store.write([deposit("a"), deposit("d")], COMMANDS)
    assert sum(result.counts["duplicate"] for result in batches(connection)) == 2


def test_archived_commands_that_are_still_needed_are_kept(connection, store):
    """Commands that are not archived, unread or dead letters are kept."""
    store.write([deposit(key) for key in "abcdefgh"], COMMANDS)
    batch(connection, SENT_TO).run(6)
    connection.execute(
        "INSERT INTO reservation.dead_letters (consumer, category, global_position, "
        "message_id, stream_name, type, state, reason, process) "
        "SELECT 'account', %s, global_position, id, stream_name, type, 'parked', 'x', 'x' "
        "FROM message_store.messages WHERE global_position = 2",
        [SENT_TO],
    )
    connection.execute(
        "INSERT INTO reservation.positions (consumer, category, partition, position) "
        "VALUES ('another', %s, 0, 5)",
        [SENT_TO],
    )
    assert prune_everything(connection, 4, but=[1]) == {SENT_TO: 1}
    assert positions(connection, SENT_TO) == [1, 2, 4, 5, 6, 7, 8]
    assert prune_everything(connection, 8) == {SENT_TO: 2}
    assert positions(connection, SENT_TO) == [2, 5, 6, 7, 8]  # another is at 5
    connection.execute("DELETE FROM reservation.positions")
    assert prune_everything(connection, 8) == {}


@pytest.mark.parametrize("limit", [1, 100])
def test_archived_reservations_are_removed_as_streams_and_only_on_request(connection, store, limit):
    """Archived reservations are removed as whole streams, and only on request."""
    store.write([deposit(key) for key in "abcde"], COMMANDS)
    drain(connection)
    a, b, c, d, e = positions(connection, RESERVED)
    store.write(deposit("b"), f"{RESERVED}-123+b")
    age(connection, "%", 100)
    age(connection, "%+d", 80)
    connection.execute(
        "INSERT INTO reservation.dead_letters (consumer, category, global_position, "
        "message_id, stream_name, type, state, reason, process) "
        "SELECT 'account', %s, global_position, id, stream_name, type, 'dead', 'x', 'x' "
        "FROM message_store.messages WHERE global_position = %s",
        [RESERVED, c],
    )
    days = timedelta(days=90)
    assert prune_everything(connection, e) == {SENT_TO: 4}
    gone = prune_everything(connection, e, older_than=days, limit=limit)
    assert gone == {RESERVED: 1}
    assert [
        position for position in (a, b, c, d, e) if position in positions(connection, RESERVED)
    ] == [
        b,
        c,
        d,
        e,
    ]
    assert prune_everything(connection, e, older_than=timedelta(days=1), limit=limit) == {
        RESERVED: 1
    }
    assert reserved(store) == ["b", "c", "e", "b"]


def test_an_archive_is_named_with_the_component_that_it_is_of(cli, tmp_path):
    """An archive without its component is refused in one line."""
    printed = cli("--archived", str(tmp_path))
    assert (printed.returncode, "--archived needs APP" in printed.stderr) == (2, True)
    printed = cli("bank:account", "--archived", str(tmp_path))
    assert (printed.returncode, printed.stderr.count("\n")) == (2, 1)
    assert f"There is no archive in {tmp_path}" in printed.stderr
