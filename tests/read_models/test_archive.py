"""Building read models from an archive, and then from the store."""

import json
import random

import pytest

import consumers
from reservation import ReadModel
from reservation.errors import ArchiveError, StoreError
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
from tests.read_models.test_switching import fits, models
from tests.support.archives import (
    CategoryPart,
    archive,
    consume,
    drain,
    positions_of_both,
    remove,
    stored_positions,
)
from tests.support.commands import hide, invoke_cli, refuse_start
from tests.support.consuming import until
from tests.support.read_models import looks, switch, verify
from tests.support.started import Started


def write_at_random(store, chance, number):
    """Write events of some streams; return the rooms that are taken."""
    expected: dict[int, int] = {}
    for _ in range(number):
        (kind, sign), night = chance.choice([(Booked, 1), (Cancelled, -1)]), chance.randrange(5)
        store.write(kind("b", night, 2), f"{BOOKINGS}-{chance.randrange(30)}")
        expected[night] = expected.get(night, 0) + 2 * sign
    return expected


@pytest.fixture
def pruned(connection, store, tmp_path):
    """Archive 40 events of 60 in two runs, and remove what is archived but for the last one.

    Gives the folder, and the rooms that are taken.
    """
    expected = write_at_random(store, random.Random(1), 60)
    for end in (25, 40):
        archive(connection, tmp_path / "archive", BOOKINGS, until=end)
    remove(connection, BOOKINGS, 40)
    return tmp_path / "archive", expected


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize("make", [one_by_one, by_sets])
def test_removed_messages_are_read_from_the_archive(connection, pruned, make, size):
    """The rows are those of all events, for every batch size."""
    folder, expected = pruned
    assert drain(connection, make(), folder, batch_size=size) == {"handled": 60}
    assert nights(connection) == expected
    assert verify(connection, make(), folder).is_proved


@pytest.mark.parametrize("most", [1, 200, 1000])
def test_batches_of_few_bytes_are_read(connection, pruned, most):
    """A batch may end within the archive."""
    folder, expected = pruned
    drain(connection, one_by_one(), folder, batch_bytes=most)
    assert nights(connection) == expected


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_message_in_both_counts_once(connection, store, tmp_path, size):
    """So does one that became visible in the store after the archive was made."""
    expected = write_at_random(store, random.Random(2), 20)
    connection.execute("UPDATE message_store.messages SET global_position = global_position * 1000")
    connection.execute("SELECT setval('message_store.messages_global_position_seq', 20000)")
    folder = archive(connection, tmp_path / "archive", BOOKINGS, until=15_000)
    remove(connection, BOOKINGS, 4_000)
    for at in (3_500, 14_500):
        connection.execute(
            "INSERT INTO message_store.messages"
            " (global_position, position, stream_name, type, data)"
            " VALUES (%s, 0, %s, 'Booked', %s)",
            [at, f"{BOOKINGS}-late{at}", json.dumps({"bookingId": "b", "night": at})],
        )
    drain(connection, one_by_one(), folder, batch_size=size)
    assert nights(connection) == {**expected, 3_500: 1, 14_500: 1}
    assert verify(connection, one_by_one(), folder).is_proved


PARTS = [
    {},
    {"after": 7},
    {"after": 7, "until": 21},
    {"partitions": (1,), "size": 3},
    {"partitions": (0, 2), "size": 3, "until": 33},
    {"partitions": (3,), "size": 4, "former_positions": (10, 0, 35)},
]


@pytest.mark.parametrize("limit", [1, 4, 1000])
@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_what_the_store_would_give(connection, store, tmp_path, part, limit):
    """Also of some partitions, and where their number was changed."""
    write_at_random(store, random.Random(3), 40)
    folder = archive(connection, tmp_path / "archive", BOOKINGS, until=40)
    asked = CategoryPart(**part)
    expected = stored_positions(connection, BOOKINGS, asked)
    remove(connection, BOOKINGS, 30)
    assert positions_of_both(connection, folder, BOOKINGS, asked, limit) == expected


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_categories_may_be_in_several_archives_or_in_none(connection, store, tmp_path, size):
    """A rebuild handles them in the order of their global positions."""
    model = by_sets(1)
    for category in ("refund", "fee"):
        model.handle_many(Cancelled, category=category)(take_back)
    for n in range(12):
        book(store, n, booking=f"b{n}")
        store.write(Cancelled("b", n % 3), f"refund-{n}")
        store.write(Cancelled("b", n % 4), f"fee-{n}")
    folders = [
        archive(connection, tmp_path / "one", BOOKINGS, "hotel:command", until=22),
        archive(connection, tmp_path / "two", "refund", until=30, component="payment"),
    ]
    remove(connection, BOOKINGS, 20)
    remove(connection, "refund", 29)
    drain(connection, model, *folders, batch_size=size)
    result = verify(connection, model, *folders)
    assert (result.is_proved, result.rebuilt.messages) == (True, 36)
    with pytest.raises(ArchiveError, match="was built from an archive of refund up to"):
        verify(connection, model, folders[0])


def take_back(events, context):
    for one in events:
        context.connection.execute(
            "INSERT INTO nights VALUES (%s, -1, 0)"
            " ON CONFLICT (night) DO UPDATE SET taken = nights.taken - 1",
            [one.event.night],
        )


KILLS = 4


def test_the_rows_are_right_however_often_processes_are_killed(
    connection, store, tmp_path, monkeypatch
):
    """Two workers share the partitions of archive and store; some events fail, one kills once."""
    chance = random.Random(4)
    expected = write_at_random(store, chance, 150)
    book(store, 1, rooms=13, booking="bad")
    book(store, 7, rooms=99, booking="deadly")
    (kills := tmp_path / "kills").touch()
    monkeypatch.setenv("KILLS", str(kills))
    for night, rooms in write_at_random(store, chance, 150).items():
        expected[night] += rooms
    expected[7] = 99
    archive(connection, tmp_path / "archive", BOOKINGS, until=250, file_of=lambda n: n // 40)
    remove(connection, BOOKINGS, 250)
    at = address(connection)

    def is_built():
        return there(connection) and nights(connection) == expected

    options = ("--workers", "2", "--partitions", "4", "--batch-size", "3")
    archived = ("--archive", str(tmp_path / "archive"))
    with Started(at, *options, *archived, app=FIRST, cwd=ROOT) as started:
        for _ in range(KILLS):
            before = reached(connection)
            until(lambda before=before: reached(connection) > before or is_built())
            chance.choice(started.workers).kill()
            until(lambda: len(started.workers) == 2)
        until(is_built)
    assert not kills.exists()
    result = verify(connection, one_by_one(), tmp_path / "archive")
    assert (result.is_proved, result.rebuilt.left_out) == (True, 1)


def reached(connection):
    ((found,),) = connection.execute(
        "SELECT coalesce(sum(position), 0) FROM reservation.positions"
    ).fetchall()
    return found


def there(connection):
    ((found,),) = connection.execute("SELECT to_regclass('occupancy.nights')").fetchall()
    return found is not None


@pytest.mark.usefixtures("pruned")
def test_a_version_that_is_made_without_the_archive_is_warned_of(connection):
    """Once, when it is made; its rows lack what was removed."""
    at = address(connection)
    with Started(at, app=FIRST, cwd=ROOT) as started:
        warned = started.wait_for("messages_removed", category=BOOKINGS)
        assert "--archive" in warned["hint"]
        started.wait_for("consumer_started")
        assert started.stop() == 0
    with Started(at, app=FIRST, cwd=ROOT) as started:
        started.wait_for("consumer_started")
        assert started.stop() == 0
    assert "messages_removed" not in started.log


def test_a_version_is_not_gone_on_with_without_its_archive(connection, pruned):
    """Else it would skip what was removed; behind the end of the archive it needs none."""
    folder, expected = pruned
    drain(connection, one_by_one(), folder)
    connection.execute("UPDATE reservation.moves SET position = 30, message_id = NULL")
    refused = "is built from an archive of booking up to global position 40, and has handled it up "
    refused += "to 30; name that archive with --archive"
    with pytest.raises(ArchiveError, match=refused):
        consumers.drain(one_by_one(), address(connection))
    assert refused in start_refused(connection)
    connection.execute("UPDATE reservation.moves SET position = 60")
    consumers.drain(one_by_one(), address(connection))
    assert nights(connection) == expected
    assert "name that archive with --archive" in verify_refused(connection)


def test_a_running_process_does_not_go_on_without_the_archive(connection, pruned):
    """The version it knew was removed, and is built anew from an archive."""
    folder, _ = pruned
    drain(connection, one_by_one(), folder)
    connection.execute("UPDATE reservation.moves SET position = 30, message_id = NULL")
    with pytest.raises(ArchiveError, match="name that archive with --archive"):
        consume(connection, one_by_one(), BOOKINGS)


def start_refused(connection, *arguments, app=FIRST):
    place = ("--app-dir", str(ROOT), "--database-url", address(connection))
    error = refuse_start(app, *place, *map(str, arguments))
    assert error.count("\n") == 1
    return error


def verify_refused(connection, *arguments):
    at = ("--database-url", address(connection))
    done = invoke_cli("models", "verify", FIRST, *at, *map(str, arguments), cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    return done.stderr


def test_a_version_that_was_begun_without_an_archive_gets_none(connection, store, pruned):
    """Its rows may lack what was removed before; one that has handled nothing can have it."""
    folder, expected = pruned
    consumers.drain(one_by_one(), address(connection))
    assert "was begun without an archive; leave --archive out" in start_refused(
        connection, "--archive", folder
    )
    connection.execute("UPDATE reservation.moves SET position = 0, message_id = NULL")
    connection.execute("DELETE FROM occupancy_1.nights")
    connection.execute("DELETE FROM reservation.members")
    drain(connection, one_by_one(), folder)
    assert nights(connection) == expected


def test_nothing_is_built_from_an_archive_that_does_not_fit(connection, store, pruned, tmp_path):
    """One line says what is wrong, and there is no table."""
    folder, _ = pruned
    assert "--archive is for read models, and account is a component" in start_refused(
        connection, "--archive", folder, app="bank:account"
    )
    assert "There is no archive in" in start_refused(connection, "--archive", tmp_path)
    store.write(Booked("b", 1), "other-1")
    other = archive(connection, tmp_path / "other", "other", until=99)
    assert "has none of what occupancy_1 reads, booking; it has other" in start_refused(
        connection, "--archive", other
    )
    (path, *_) = folder.glob("run=000002/*/*/*.parquet")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"x")
    assert f"{path} has another SHA-256" in start_refused(connection, "--archive", folder)
    path.write_bytes(whole)
    connection.execute("UPDATE reservation.store_identity SET id = gen_random_uuid()")
    assert "is of the store" in start_refused(connection, "--archive", folder)
    assert not there(connection)


def test_an_archive_that_leaves_a_gap_is_refused(connection, store, tmp_path):
    """An old copy of it, or one that lacks a category, does not reach what the store has."""
    for n in range(40):
        book(store, 1, booking=f"b{n % 5}")
        store.write(Cancelled("b", 1), f"refund-{n % 3}")
    old = archive(connection, tmp_path / "old", BOOKINGS, until=20)
    new = archive(connection, tmp_path / "new", BOOKINGS, until=60)
    remove(connection, BOOKINGS, 19)
    connection.execute("DELETE FROM message_store.messages WHERE global_position BETWEEN 21 AND 50")
    refused = start_refused(connection, "--archive", old)
    assert "removed from the store that the archive in" in refused
    assert "such as the one at position 4 of booking-b0" in refused
    connection.execute("DELETE FROM message_store.messages WHERE global_position < 59")
    assert "does not hold the last message of booking" in start_refused(
        connection, "--archive", old
    )
    model = by_sets(1)
    model.handle_many(Cancelled, category="refund")(take_back)
    with pytest.raises(ArchiveError, match="Messages of refund were removed"):
        drain(connection, model, new)
    assert not there(connection)
    assert drain(connection, one_by_one(), new) == {"handled": 40}


def test_a_store_with_other_messages_is_found_while_it_is_read(connection, pruned):
    """Somebody has copied the id of a store, for example."""
    folder, _ = pruned
    connection.execute(
        "INSERT INTO message_store.messages (global_position, position, stream_name, type, data)"
        " VALUES (7, 0, 'booking-other', 'Booked', '{}')"
    )
    with pytest.raises(ArchiveError, match="other messages at global position 7"):
        drain(connection, one_by_one(), folder)


def lenient():
    """Return the version without its fault."""
    model = ReadModel("occupancy", version=1)
    model.tables(make_nights)
    model.handle(Booked, category=BOOKINGS)(
        lambda event, context: take(context, event.night, event.rooms)
    )
    return model


@pytest.fixture
def letters(connection, store, tmp_path):
    """Make a dead letter of an archived message, park one behind it, and ask for a retry.

    Gives the folder of the archive.
    """
    book(store, 1, rooms=13, booking="bad")
    book(store, 2, booking="bad")
    book(store, 3)
    folder = archive(connection, tmp_path / "archive", BOOKINGS, until=3)
    remove(connection, BOOKINGS, 3)
    drain(connection, one_by_one(attempts=1), folder)
    assert nights(connection) == {3: 1}
    decide(connection, "retry", "--all")
    return folder


def states(connection):
    return connection.execute(
        "SELECT state FROM reservation.dead_letters ORDER BY global_position"
    ).fetchall()


@pytest.mark.parametrize("size", [1, 1000])
def test_a_letter_of_an_archived_message_is_retried(connection, letters, size):
    """With what is parked behind it."""
    drain(connection, lenient(), letters, batch_size=size)
    assert nights(connection) == {1: 13, 2: 1, 3: 1}
    assert states(connection) == [("handled",), ("handled",)]
    assert verify(connection, lenient(), letters).is_proved


def test_without_the_archive_a_letter_says_that_it_needs_it(connection, letters):
    """It stays open, and a retry with the archive handles it."""
    consumers.drain(lenient(), address(connection))
    ((error,),) = connection.execute(
        "SELECT error FROM reservation.dead_letters WHERE state = 'dead'"
    ).fetchall()
    assert "is no longer in the store; start the read model with --archive, or discard" in error
    decide(connection, "retry", "--all")
    drain(connection, lenient(), letters)
    assert nights(connection) == {1: 13, 2: 1, 3: 1}


def test_progress_is_that_in_archive_and_store(connection, pruned, monkeypatch):
    """What is left of the archive is estimated; its messages are mostly not in the store."""
    folder, _ = pruned
    drain(connection, one_by_one(), folder)

    def stand_at(position):
        connection.execute("UPDATE reservation.moves SET position = %s", [position])

    stand_at(20)
    printed = models(connection, "list")
    fits("models", printed)
    (version,) = printed["versions"]
    assert (version["progress"], version["lagMessages"]) == (0.3333, 40)
    (look,) = looks(connection, monkeypatch, lambda _: stand_at(35))
    assert round(look.rate * look.left) == 25
    (look,) = looks(connection, monkeypatch, lambda _: stand_at(50))
    assert round(look.rate * look.left) == 10
    stand_at(60)
    (version,) = models(connection, "list")["versions"]
    assert (version["progress"], version["lagMessages"]) == (1.0, 0)


def test_views_are_not_turned_to_a_version_that_reads_its_archive(connection, pruned):
    """The store may have next to nothing that it lacks."""
    folder, _ = pruned
    drain(connection, one_by_one(), folder)
    drain(connection, by_sets(), folder)
    move = "UPDATE reservation.moves SET position = %s, message_id = NULL WHERE consumer = %s"
    connection.execute(move, [20, "occupancy_2"])
    connection.execute(move, [59, "occupancy_1"])
    with pytest.raises(StoreError, match="lags by 40 messages of booking"):
        switch(connection, 2, within=0)
    connection.execute(move, [60, "occupancy_2"])
    assert switch(connection, 2, within=0) is True


def test_rows_are_verified_with_the_archive(connection, pruned):
    """By the command, which prints what it does without one."""
    folder, _ = pruned
    drain(connection, one_by_one(), folder)
    connection.execute("UPDATE occupancy_1.nights SET taken = taken + 1 WHERE night = 2")
    at = ("--database-url", address(connection), "--archive", str(folder), "--json")
    done = invoke_cli("models", "verify", FIRST, *at, cwd=ROOT)
    assert done.returncode == 1, done.stderr
    result = json.loads(done.stdout)
    fits("verify", result)
    assert (result["messages"], result["tables"][0]["differing"]) == (60, 1)


def test_a_missing_extra_is_named(connection, pruned, monkeypatch):
    """What reads archives needs no Spark."""
    hide(monkeypatch, "pyarrow")
    assert "pip install 'reservation[parquet]'" in start_refused(connection, "--archive", pruned[0])
