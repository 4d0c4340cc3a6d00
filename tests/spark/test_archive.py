"""Archiving old messages, compared with the store that they come from."""

import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.readwriter import DataFrameWriter

from reservation import Write
from tests.apps.bank import RESERVED, address, drain
from tests.apps.changing import raw
from tests.apps.deposits import APP
from tests.spark.builders import ROOT, age, head
from tests.spark.test_reconcile import modes
from tests.store.test_unreadable import spoil
from tests.support.consuming import until
from tests.support.controls import COMMANDS, LATER, deposit, open_, withdraw
from tests.support.started import EXAMPLES, Started
from tests.support.stored_positions import store_position

OLD = "2026-02-28 23:59:59.99999"  # the tenth microsecond from it is in March
MARCH = "2026-03-01"


FORMER = {"app": "tests.spark.keyed:former", "app_dir": ROOT}
LATER_KEYS = {"app": "tests.spark.keyed:later", "app_dir": ROOT}

ODD = [
    (None, None),
    ("[]", "{}"),
    ('["a", ["b"], {"c": null}]', '{"causationMessageGlobalPosition": 1}'),
    ('{"aId": "1", "key": "' + "ü\U0001f600\u202e" * 9 + '"}', "[1]"),
    ('{"aId": "1", "key": "<script>\\u001b[31m\\\\"}', '"text"'),
    ('{"aId": 1, "key": ' + "9" * 400 + "}", "null"),
    ('{"aId": 1, "key": 1.' + "0" * 400 + "1e-300}", '{"replyStreamName": "x-1"}'),
    ('{"aId": "' + "x" * 200_000 + '", "key": "k"}', None),
    ('{"aId": "1+2", "key": "a+b", "by": -7}', '{"schemaVersion": 2.10}'),
    ('{"aId": "1", "by": 5.0, "key": ""}', '{"schemaVersion": "2\\""}'),
    ('{"key": "k", "by": 5, "aId": "1"}', '{"schemaVersion": [2], "a": {"schemaVersion": 2}}'),
    ('{"key": "k"}', '{"schemaVersion": 3.0}'),
]


@pytest.fixture
def odd(connection):
    """Store messages of any shape in each category of the component, as if all had been read."""
    categories = ["007:command", "b/c=%20 ü<i>", "007"]
    for category in categories:
        for n, (data, metadata) in enumerate(ODD):
            for type_ in ("Deposit", "Put", "Move", "\x01é<T>"):
                connection.execute(
                    "INSERT INTO message_store.messages "
                    "(position, stream_name, type, data, metadata) VALUES (%s, %s, %s, %s, %s)",
                    [n, f"{category}-{type_}\x1b[31m<b>\u202e", type_, data, metadata],
                )
    for category in categories:
        store_position(connection, "007", category, head(connection))
    age(connection, OLD)
    age(connection, "1969-12-31 23:59:59", first=60)


COLUMNS = ["global_position", "position", "stream_name", "type", "id", "data", "metadata"]


@pytest.mark.usefixtures("odd")
def test_archived_messages_equal_the_stored_ones(connection, reconcile, archive, tmp_path):
    """They are in the files to the byte, with times that all programs read; keys are made anew."""
    assert archive(**FORMER).added == [4 * len(ODD)] * 3
    paths = [*(tmp_path / "archive").glob("run=*/**/*.parquet")]
    rows = [row for path in paths for row in pq.ParquetFile(path).read(COLUMNS).to_pylist()]
    rows.sort(key=lambda row: row["global_position"])
    stored = connection.execute(
        f"SELECT {', '.join(f'{name}::text' for name in COLUMNS)} "
        "FROM message_store.messages m ORDER BY m.global_position"
    ).fetchall()
    found = [tuple(None if of is None else str(of) for of in row.values()) for row in rows]
    assert found == stored
    types = {pq.read_schema(path).field("time").type for path in paths}
    assert types == {pa.timestamp("us", tz="UTC")}

    # Keys, contents and versions are those of the declaration as it is today.
    judged = reconcile("--archive", tmp_path / "archive", **LATER_KEYS)
    assert (judged.error, judged) == ("", reconcile(**LATER_KEYS))
    assert judged.commands["keys"] >= 3


def test_only_what_a_category_begins_with_is_archived_and_only_what_was_read(
    connection, store, archive, tmp_path
):
    """A category is archived up to its first young or unread message, and goes on from there."""
    assert archive(before=MARCH).added == [0, 0, 0]  # an empty store
    store.write([open_(), *(deposit(f"d{n}") for n in range(3))], COMMANDS)
    drain(connection)
    store.write([deposit("d3"), deposit("d4")], COMMANDS)
    age(connection, OLD)
    age(connection, "2026-03-02", first=5)
    result = archive(before=MARCH)
    assert result.added == [4, 0, 0]
    assert [one["lastGlobalPosition"] for one in result.result["categories"]] == [4, 0, 0]
    assert result.result["offered"]
    first = contents(tmp_path)
    assert archive(before=MARCH).added == [0, 0, 0]
    assert contents(tmp_path) == first
    result = archive(before="2026-06-01")
    assert result.added == [0, 3, 4]  # nobody has read the last commands
    drain(connection)
    age(connection, "2026-03-03", first=head(connection) - 3)
    assert archive(before="2026-06-01").added == [2, 2, 2]
    assert first.items() < contents(tmp_path).items()
    days = {path.name for path in (tmp_path / "archive").glob("run=*/*/day=*")}
    assert days == {"day=2026-02-28", "day=2026-03-02", "day=2026-03-03"}
    assert modes(tmp_path / "archive") == {(True, 0o700), (False, 0o600)}


def contents(tmp_path):
    """Return every file of the archive that readers use."""
    folder = tmp_path / "archive"
    files = [path for path in folder.glob("run=*/**/*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def rewrite(path: Path, change) -> None:
    """Replace a Parquet file by one that holds something else, and is whole otherwise."""
    table = pq.read_table(path, partitioning=None)
    pq.write_table(change(table), path)
    path.with_name(f".{path.name}.crc").unlink()


def change_data(table: pa.Table) -> pa.Table:
    index = table.schema.get_field_index("data")
    data = ["{}", *table.column(index).to_pylist()[1:]]
    return table.set_column(index, "data", pa.array(data, pa.string()))


# What becomes of the file of a day.
HARMS = {
    "2026-01-01": lambda path: rewrite(path, change_data),
    "2026-01-02": lambda path: rewrite(path, lambda table: pa.concat_tables([table, table])),
    "2026-01-03": lambda path: rewrite(path, lambda table: table.slice(1)),
    "2026-01-04": lambda path: path.unlink(),
    "2026-01-05": lambda path: path.rename(path.parents[1] / "day=2026-01-06" / path.name),
}


def test_what_was_written_otherwise_than_the_store_has_it_is_found(
    connection, store, archive, monkeypatch, tmp_path
):
    """Counts and hashes by category and day find every difference, and nothing is added."""
    days = [*HARMS, "2026-01-06", "2026-01-07"]
    for n, day in enumerate(days):
        store.write([deposit(f"d{n}"), deposit(f"e{n}")], COMMANDS)
        age(connection, day, first=2 * n + 1)
    store_position(connection, "account", "account:command", head(connection))
    write = DataFrameWriter.parquet

    def write_badly(writer, folder, *arguments, **options):
        write(writer, folder, *arguments, **options)
        for day, harm in HARMS.items():
            (path,) = Path(folder).glob(f"*/day={day}/*.parquet")
            harm(path)

    monkeypatch.setattr(DataFrameWriter, "parquet", write_badly)
    done = archive()
    differing = [line.partition(": ")[0] for line in done.result["differences"]]
    assert differing == [f"account:command of {day}" for day in days[:-1]]
    assert (done.status, done.added) == (1, [0, 0, 0])
    assert (done.result["verified"], done.result["offered"]) == (False, None)
    assert not [*(tmp_path / "archive").glob("run=*")]


@pytest.fixture
def archived(connection, store, archive, tmp_path):
    """Archive a few messages; give the file with the commands."""
    store.write([open_(), deposit("d1"), deposit("d2")], COMMANDS)
    drain(connection)
    age(connection, OLD)
    assert archive().status == 0
    (path,) = (tmp_path / "archive").glob("run=*/category=account%3Acommand/*/*.parquet")
    return path


def test_damage_is_found_later_and_blocks_everything(
    archived, connection, store, archive, reconcile, prune, command, tmp_path
):
    """Nothing is read, added or removed until a damaged file is restored."""
    store.write(deposit("d3"), COMMANDS)
    drain(connection)
    age(connection, OLD)
    checksum = archived.with_name(f".{archived.name}.crc")
    whole, sums = archived.read_bytes(), checksum.read_bytes()
    rewrite(archived, change_data)
    done = archive()
    (difference,) = done.result["differences"]
    assert difference.startswith(f"{archived.relative_to(tmp_path / 'archive')} has ")
    assert (done.status, done.added, done.result["offered"]) == (1, [0, 0, 0], None)
    table = command("archive", "bank:account", "--to", str(tmp_path / "archive"), "--before", "1d")
    assert (table.returncode, table.stderr) == (1, "")
    assert f"Not in order: {difference}" in table.stdout
    assert "reservation prune" not in table.stdout
    archived.unlink()
    found = reconcile("--archive", tmp_path / "archive")
    assert found.status == 2
    assert "is missing; put it back from a copy" in found.error
    archived.write_bytes(whole[:-1] + b"x")  # of the same size
    status, error = prune()
    assert status == 2
    assert error.startswith(f"Error: {archived} has another SHA-256")
    archived.write_bytes(whole)
    checksum.write_bytes(sums)
    assert archive().added == [1, 1, 1]
    shutil.copy(archived, archived.with_name("part-more.parquet"))
    found = reconcile("--archive", tmp_path / "archive")
    assert "part-more.parquet is not listed in " in found.error


def test_an_archive_that_does_not_fit_is_refused(
    archived, connection, archive, reconcile, command, tmp_path
):
    """The error says what to do, in one line; the rest of a run that was killed is taken away."""
    folder = tmp_path / "archive"
    with_archive = ("--archive", folder)
    assert "There is no archive in" in reconcile("--archive", tmp_path / "nothing").error
    before = contents(tmp_path)
    shutil.copytree(folder / "run=000001", folder / ".new-0123abcd" / "run=000002")
    (folder / "_LOCK").write_text(".new-0123abcd\n")
    (folder / ".new").mkdir()  # what no run has left
    assert archive().added == [0, 0, 0]
    assert [path.name for path in folder.glob(".new*")] == [".new"]
    assert contents(tmp_path) == before
    other = command("archive", "shop:orders", "--to", str(folder), "--before", "1d")
    assert (other.returncode, other.stderr.count("\n")) == (2, 1)
    assert "of the component 'account', not " in other.stderr
    connection.execute("UPDATE message_store.messages SET id = gen_random_uuid()")
    connection.execute("UPDATE reservation.moves SET message_id = NULL")
    for done in (archive(), reconcile(*with_archive)):
        assert done.status == 2
        assert "it is another store, or messages were deleted" in done.error
    connection.execute("UPDATE reservation.store_identity SET id = gen_random_uuid()")
    for done in (archive(), reconcile(*with_archive)):
        assert done.status == 2
        assert "and this store is " in done.error
    (folder / "run=000001").rename(folder / "run=000002")
    assert "lacks run=000001; put it back from a copy" in archive().error


def test_messages_that_differ_from_the_archive_are_not_removed(archived, connection, prune):
    """They are kept and named; the others are removed."""
    connection.execute(
        "UPDATE message_store.messages SET time = time + interval '1 microsecond' "
        "WHERE global_position = 2"
    )
    status, pruned = prune()
    assert (status, pruned["differing"]) == (2, [2])
    left = connection.execute(
        "SELECT global_position FROM message_store.messages WHERE global_position <= 3 ORDER BY 1"
    ).fetchall()
    assert left == [(2,), (3,)]
    connection.execute("UPDATE reservation.store_identity SET id = gen_random_uuid()")
    status, error = prune()
    assert status == 2
    assert "is of the store" in error


def test_the_commands_that_are_offered_remove_what_was_archived(archived, command, tmp_path):
    """They are those of the line that is printed; the copies go with a warning."""
    place = ("--to", str(tmp_path / "archive"), "--before", "2026-03-01")
    printed = command("archive", "bank:account", *place).stdout
    offers = [line.split()[1:] for line in printed.splitlines() if line.startswith("  ")]
    commands, reservations = offers
    assert "Verified: what is in" in printed
    refused = command(*commands)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert "account:command is read by account;" in refused.stderr
    removed = command(*commands, "--yes")
    assert removed.stdout == "archived commands of account:command: 2 messages removed\n"
    removed = command(*reservations, "--yes")
    assert f"archived reservations of {RESERVED}: 1 message removed" in removed.stdout
    assert "takes effect again" in removed.stderr


def test_that_nothing_is_old_enough_is_said(connection, store, command, tmp_path):
    """An empty archive is explained by the age of the messages, and nothing is offered."""
    store.write([open_(), deposit("d1")], COMMANDS)
    drain(connection)
    place = ("--to", str(tmp_path / "archive"), "--before", "1h")
    done = command("archive", "bank:account", *place)
    assert (done.returncode, done.stderr) == (0, "")
    assert "no message that the consumers have read was stored before " in done.stdout
    assert not {"Verified", "prune"} & {*done.stdout.split()}


@pytest.fixture
def planted(connection, store):
    """Plant findings of most kinds among old and young messages."""
    for half, time in (("old", "2026-02-01"), ("new", "2026-03-02")):
        before = head(connection) if half == "new" else 0
        mine = f"d-{half}"
        store.write(
            [open_(half), deposit(mine), deposit(mine, time=LATER), withdraw(half)], COMMANDS
        )
        store.write([deposit(f"lost-{half}"), deposit(mine, amount="99")], COMMANDS)
        store.write([deposit("both"), deposit(f"late-{half}")], COMMANDS)
        drain(connection)
        connection.execute(
            "DELETE FROM message_store.messages WHERE stream_name = %s",
            [f"{RESERVED}-123+lost-{half}"],
        )
        store.write_batch(
            [
                Write(deposit(f"o-{half}"), f"{RESERVED}-123+o-{half}"),
                Write(deposit(f"t-{half}"), f"{RESERVED}-123+{mine}"),
            ]
        )
        drain(connection)
        age(connection, time, first=before + 1)
    store.write([deposit("pending"), deposit("both")], COMMANDS)
    return connection


@pytest.fixture
def pruned(archive, prune):
    """Give a function that archives what is old, and removes it from the store."""

    def run():
        done = archive(before=MARCH)
        assert done.status == 0
        assert all(0 < count < 20 for count in done.added)
        status, _ = prune("--reservations-older-than", "1d")
        assert status == 0
        return done

    return run


def number_of_messages(connection):
    ((number,),) = connection.execute("SELECT count(*) FROM message_store.messages")
    return number


def test_archive_and_store_are_reconciled_as_the_store_alone(planted, pruned, reconcile, tmp_path):
    """They give the same counts, findings and durations."""
    wanted, before = reconcile("--details"), number_of_messages(planted)
    assert {*wanted.found} >= {"missing", "conflict", "orphan", "multiple"}
    pruned()
    assert number_of_messages(planted) < before
    assert reconcile("--details", "--archive", tmp_path / "archive") == wanted


def test_a_state_goes_on_with_what_an_archive_has_taken_over(
    planted, store, pruned, reconcile, tmp_path
):
    """It is compared with both, and needs the archive if a removed message is contradicted."""
    state, with_archive = ("--state", tmp_path / "state"), ("--archive", tmp_path / "archive")
    drain(planted)
    before = reconcile(*state)
    pruned()
    assert reconcile(*state, *with_archive) == before
    alone = reconcile(*state)
    assert alone.status == 2
    assert "The store lacks at least " in alone.error
    assert "read their archive too" in alone.error
    store.write(deposit("fresh"), COMMANDS)
    drain(planted)
    fresh = reconcile(*state, *with_archive)
    assert (fresh.error, fresh.commands["commands"]) == ("", before.commands["commands"] + 1)
    # It is handled again, because what it repeats was removed.
    store.write(deposit("late-old"), COMMANDS)
    drain(planted)
    asked = reconcile(*state)
    assert asked.status == 2
    assert "read their archive" in asked.error
    assert reconcile(*state, *with_archive) == reconcile(*with_archive)


def test_an_archive_has_the_data_that_letters_were_given(
    connection, store, command, archive, prune, reconcile, tmp_path
):
    """With who gave it and why; the command stays in the store, and is counted as corrected."""
    store.write(open_(), COMMANDS)
    bad = {"depositId": "d1", "accountId": "123", "amount": "?", "time": "2026-01-02T03:04:05Z"}
    raw(connection, COMMANDS, "Deposit", bad)
    drain(connection)
    (letter,) = json.loads(command("dead-letters", "list", "--json").stdout)["deadLetters"]
    words = ("retry", str(letter["globalPosition"]), "--data", "-", "--reason", "a slip")
    done = command("dead-letters", *words, input=json.dumps(bad | {"amount": 20}))
    assert done.returncode == 0, done.stderr
    drain(connection)
    store.write([deposit("d2"), deposit("d3")], COMMANDS)
    drain(connection)
    age(connection, OLD)
    archive()
    manifest = json.loads((tmp_path / "archive" / "run=000001" / "_manifest.json").read_text())
    (given,) = manifest["given"]
    assert given["reason"] == "a slip"
    assert json.loads(given["data"]) == bad | {"amount": 20}
    assert prune("--reservations-older-than", "1d")[0] == 0
    found = reconcile("--archive", tmp_path / "archive")
    assert (found.status, found.commands["corrected"]) == (0, 1)


UNREADABLE = {
    2: ("data", None),
    3: ("metadata", None),
    4: ("time", "infinity"),
    5: ("time", "-infinity"),
    6: ("time", "0001-01-01 00:00:00 BC"),
    7: ("time", "10000-01-01"),
}


def test_messages_that_cannot_be_read_are_named_and_stay(
    connection, store, archive, prune, reconcile, tmp_path
):
    """An archive goes on past messages that cannot be read; none of them leaves the store."""
    store.write([open_(), *(deposit(f"d{n}") for n in range(8))], COMMANDS)
    last_command = head(connection)
    age(connection, "2026-02-01")
    for position, (column, value) in UNREADABLE.items():
        spoil(connection, position, column, value)
    drain(connection)
    age(connection, "2026-02-02", first=last_command + 1)
    whole = reconcile()
    done = archive()
    assert done.status == 0
    assert done.result["unreadable"]["account:command"] == [*UNREADABLE]
    assert done.result["categories"][0]["lastGlobalPosition"] == last_command
    assert reconcile("--archive", tmp_path / "archive") == whole
    _, pruned = prune()
    assert {*pruned["differing"]} == {*UNREADABLE}
    left = connection.execute(
        "SELECT global_position FROM message_store.messages WHERE stream_name = %s ORDER BY 1",
        [COMMANDS],
    ).fetchall()
    assert [position for (position,) in left] == sorted({*UNREADABLE, last_command})


def test_a_read_model_is_built_from_what_was_archived_and_removed(
    connection, store, archive, prune, command, tmp_path
):
    """Its rows, its progress and their proof are those of all messages, in the store or not."""
    for half in ("old", "new"):
        store.write([open_(half), *(deposit(f"{half}{n}") for n in range(20))], COMMANDS)
        drain(connection)
    age(connection, OLD)
    assert archive().status == 0
    store.write([deposit(f"young{n}") for n in range(5)], COMMANDS)
    expected = sum(message.type == "Deposit" for message in store.read_stream(COMMANDS))
    status, pruned = prune()
    assert (status, pruned["pruned"][0]["count"] > 30) == (0, True)
    place = ("--app-dir", str(ROOT), "--archive", str(tmp_path / "archive"))
    env = {**os.environ, "PYTHONPATH": str(EXAMPLES)}
    with Started(address(connection), *place, app=APP, env=env) as started:
        until(lambda: built(connection))
        assert started.stop() == 0
    ((total,),) = connection.execute("SELECT total FROM deposits.asked").fetchall()
    assert total == expected * deposit().amount
    verified = command("models", "verify", APP, *place, "--json")
    assert (verified.returncode, json.loads(verified.stdout)["proved"]) == (0, True)


def built(connection):
    """Return whether the read model has handled all."""
    rows = connection.execute(
        "SELECT position >= reservation.category_head('account:command')"
        " FROM reservation.positions WHERE consumer = 'deposits_1'"
    ).fetchall()
    return rows == [(True,)]
