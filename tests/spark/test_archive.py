"""Archiving old messages, compared with the store that they come from."""

import dataclasses
import json
import shutil
import stat
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bank import account
from reservation import Component, Write
from reservation.maintenance.pruning import prune_archived
from reservation.postgres.connection import connect
from spark_jobs.archive import archive_folder
from spark_jobs.common.declaration import Declaration
from spark_jobs.common.errors import ArchiveError, StateError
from spark_jobs.jobs import archive as archiving
from spark_jobs.reconciliation.reading.categories import Categories
from spark_jobs.reconciliation.reading.union import Union
from spark_jobs.reconciliation.reconcile import in_session
from spark_jobs.reconciliation.run import Run
from spark_jobs.snapshot import snapshot as snapshots
from spark_jobs.snapshot.checksums import COLUMNS
from spark_jobs.snapshot.snapshot import exported_snapshot
from spark_jobs.source.columns import MADE, MESSAGE, TYPES, CategoryQuery
from tests.bank import RESERVED, batch, batches, drain
from tests.controls import COMMANDS, LATER, deposit, open_, withdraw
from tests.processes import EXAMPLES

pytestmark = pytest.mark.spark

BEFORE = datetime(2026, 3, 1, tzinfo=UTC)
OLD = "2026-02-28 23:59:59.99999"  # the tenth microsecond from it is in March
YOUNG = "2026-03-02"


@dataclass
class Deposit:
    a_id: str
    key: str


def odd(key="key"):
    """Return a component whose categories have names that cannot be names of folders."""
    made = Component("007", id="a_id")
    made.reserve(Deposit, into="b/c=%20 ü<i>", entity="a_id", key=key)
    made.handle(Deposit)(lambda command, entity, context: None)
    return made


def age(connection, time, *, first=1):
    """Set the times of the messages from a global position on, each a microsecond later."""
    connection.execute(
        "UPDATE message_store.messages SET time = %s::timestamp "
        "+ global_position * interval '1 microsecond' WHERE global_position >= %s",
        [time, first],
    )


@pytest.fixture
def folder(tmp_path):
    """Give the place of the archive."""
    return tmp_path / "archive"


@pytest.fixture
def archive(spark, spark_database_url, folder):
    """Give a function that archives once more and returns its result."""

    def run(component=account, before=BEFORE):
        with exported_snapshot(spark_database_url) as snapshot:
            return archiving.in_session(component, folder, before, snapshot, spark)

    return run


@pytest.fixture
def reconcile(spark, spark_database_url, folder):
    """Give a function that reconciles the bank and returns the report without its time."""

    def run(*, with_archive=True, **options):
        run = Run(account, "bank:account", EXAMPLES, spark_database_url, **options)
        run = dataclasses.replace(run, archive=folder if with_archive else None)
        with exported_snapshot(spark_database_url) as snapshot:
            return dataclasses.replace(in_session(run, snapshot, spark), time=BEFORE)

    return run


def there(folder, component=account):
    return archive_folder.there(folder, component.name, Declaration.of(component).to_json())


def added(result):
    return [category.added for category in result.categories]


def contents(folder):
    """Return every file of an archive that readers use."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.glob("run=*/**/*")
        if path.is_file()
    }


ODD = [
    (None, None),
    ("[]", "{}"),
    ('["a", ["b"], {"c": null}]', '{"causationMessageGlobalPosition": 1}'),
    ('{"aId": "1", "key": "' + "ü\U0001f600\u202e" * 9 + '"}', "[1]"),
    ('{"aId": "1", "key": "<script>\\u001b[31m\\\\"}', '"text"'),
    ('{"aId": 1, "key": ' + "9" * 400 + "}", "null"),
    ('{"aId": 1, "key": 1.' + "0" * 400 + "1e-300}", '{"replyStreamName": "x-1"}'),
    ('{"aId": "' + "x" * 200_000 + '", "key": "k"}', None),
]


def test_archived_messages_equal_the_stored_ones(
    spark, spark_connection, spark_database_url, archive, folder
):
    """Archived messages equal the stored ones to the byte, with their fingerprints."""
    component = odd()
    categories = [component.command_category, *component.reservation_categories, component.name]
    for category in categories:
        for n, (data, metadata) in enumerate(ODD):
            spark_connection.execute(
                "INSERT INTO message_store.messages (position, stream_name, type, data, metadata) "
                "VALUES (%s, %s, %s, %s, %s)",
                [
                    n,
                    f"{category}-\x1b[31m<b>\u202e{n % 3}",
                    "Deposit" if n % 4 else "\x01é<T>",
                    data,
                    metadata,
                ],
            )
    spark_connection.execute(
        "INSERT INTO reservation.positions (consumer, category, partition, position) "
        "SELECT '007', unnest(%s::text[]), 0, max(global_position) FROM message_store.messages",
        [categories],
    )
    age(spark_connection, OLD)
    age(spark_connection, "1969-12-31 23:59:59", first=9)
    assert added(archive(component)) == [8, 8, 8]
    columns = [name for name in MESSAGE if name not in ("category", "time")]
    files = [file for path in folder.glob("run=*/**/*.parquet") for file in [pq.ParquetFile(path)]]
    lie = [row for file in files for row in file.read(columns).to_pylist()]
    stored = spark_connection.execute(
        f"SELECT {', '.join(f'm.{name}::text' for name in columns)} "
        "FROM message_store.messages m ORDER BY m.global_position"
    ).fetchall()
    lie.sort(key=lambda row: row["global_position"])
    assert [tuple(None if v is None else str(v) for v in row.values()) for row in lie] == stored
    declaration = Declaration.of(component)
    with exported_snapshot(spark_database_url) as snapshot:
        store = Categories(spark, snapshot, declaration)
        wanted = store(categories, list(TYPES)).orderBy("global_position").collect()
        behind = Categories(spark, snapshot, declaration, there(folder, component).after)
        together = Union(spark, there(folder, component), declaration, behind, store)
        assert together(categories, list(TYPES)).orderBy("global_position").collect() == wanted
        firsts = together(categories, ["position"], firsts_of=[component.name]).collect()
        assert len(firsts) == 2 * len(ODD) + 1
    assert any(row.key_stream and "ü" in row.key_stream for row in wanted)


@dataclass
class Move:
    a_id: str
    by: int


def changing(*, later):
    """Return a component before and after its keys were changed."""
    made = Component("007", id="a_id")
    made.reserve(
        Deposit,
        key="key",
        into=None if later else "copies",
        volatile=("key",) if later else (),
        was="Put" if later else (),
        same_key=later,
    )
    made.reserve(Move, into="copies", key=["by", "a_id"] if later else lambda command: command.by)
    for command in (Deposit, Move):
        made.handle(command)(lambda command, entity, context: None)
    return made


COPY = '{"causationMessageStreamName": "%s", "localProperties": {"reserved": %s}}'


@pytest.mark.parametrize("later", [True, False])
def test_what_other_keys_were_archived_with_is_made_again(
    spark, spark_connection, spark_database_url, archive, folder, later
):
    """Keys, copies, digests and versions are those that the server makes of the store today."""
    of_data = [*ODD, ('{"aId": "1+2", "key": "a+b", "by": -7}', '{"schemaVersion": 2.10}')]
    of_data += [
        ('{"aId": "1", "by": 5.0, "key": ""}', '{"schemaVersion": "2\\""}'),
        ('{"key": "k", "by": 5, "aId": "1"}', '{"schemaVersion": [2], "a": {"schemaVersion": 2}}'),
        ('{"key": "k"}', '{"schemaVersion": 3.0}'),
        ('{"key": "k"}', COPY % ("007:command-1", "true")),
        ('{"key": "k"}', COPY % ("007:command-1", "false")),
        ('{"key": "k"}', COPY % ("007:command", "true")),
    ]
    messages = [
        (stream, type_, data, metadata)
        for n, (data, metadata) in enumerate(of_data)
        for type_ in ("Deposit", "Put", "Move", "Else")
        for stream in (f"007:command-{n}{type_}", f"copies-{n}{type_}")
    ] + [("007:command-1+k", "Deposit", *of_data[-3]), ("007:command-k", "Put", *of_data[-1])]
    for stream, type_, data, metadata in messages:
        spark_connection.execute(
            "INSERT INTO message_store.messages (stream_name, position, type, data, metadata) "
            "VALUES (%s, 0, %s, %s, %s)",
            [stream, type_, data, metadata],
        )
    spark_connection.execute(
        "INSERT INTO reservation.positions (consumer, category, partition, position) "
        "SELECT '007', unnest('{007:command,copies}'::text[]), 0, max(global_position) "
        "FROM message_store.messages"
    )
    age(spark_connection, "2026-01-01")
    assert not archive(changing(later=not later)).differences
    component = changing(later=later)
    archived, declaration = there(folder, component), Declaration.of(component)
    assert archived.former == [1]
    with exported_snapshot(spark_database_url) as snapshot:
        store = Categories(spark, snapshot, declaration)
        behind = Categories(spark, snapshot, declaration, archived.after)
        both = [
            read(["007:command", "copies"], list(TYPES)).orderBy("global_position").collect()
            for read in (Union(spark, archived, declaration, behind, store), store)
        ]
    names = ("type", *MADE)
    found, wanted = ([tuple(row[name] for name in names) for row in rows] for rows in both)
    assert found == wanted
    assert (
        len(wanted) == len(messages) == archived.counts["007:command"] + archived.counts["copies"]
    )
    made = {name: {row[name] for row in both[1]} for name in MADE}
    assert len(made["key_stream"]) > 3
    assert {"2.1", '"2\\""', "3"} <= made["version"]
    assert made["is_copy"] == ({True, False} if later else {False})


def test_only_what_a_category_begins_with_is_archived_and_only_what_was_read(
    spark_connection, spark_store, archive, folder
):
    """A category is archived up to its first young or unread message."""
    assert added(archive()) == [0, 0, 0]  # an empty store
    assert contents(folder) == {}
    spark_store.write([open_(), *(deposit(f"d{n}") for n in range(5))], COMMANDS)
    batch(spark_connection, "account:command").run(4)
    age(spark_connection, OLD)
    result = archive()
    assert [
        (category.category, category.added, category.last) for category in result.categories
    ] == [
        ("account:command", 4, 4),
        (RESERVED, 0, 0),  # the consumer of the copies has not read any
        ("account", 1, 7),
    ]
    assert result.removable
    before = contents(folder)
    assert added(archive()) == [0, 0, 0]
    assert contents(folder) == before
    batches(spark_connection)
    age(spark_connection, OLD)
    age(spark_connection, YOUNG, first=10)
    spark_connection.execute(
        "UPDATE message_store.messages SET time = '2026-01-01' WHERE stream_name = 'account-123' "
        "AND position = 3"
    )
    result = archive()
    assert added(result) == [2, 2, 0]
    assert [category.messages for category in result.categories] == [6, 2, 1]
    assert before.items() < contents(folder).items()
    assert added(archive(before=BEFORE + timedelta(days=90)))[1:] == [3, 5]
    times = {
        day: part.kept
        for run in there(folder).runs
        for part in run.categories.values()
        for day in part.days
    }
    assert sorted(times) == ["2026-01-01", "2026-02-28", "2026-03-02"]


def rewrite(path: Path, change) -> None:
    """Replace a Parquet file by one that holds something else, and is whole otherwise."""
    table = pq.read_table(path, partitioning=None)
    pq.write_table(change(table), path)
    path.with_name(f".{path.name}.crc").unlink()


def change_data(table: pa.Table) -> pa.Table:
    index = table.schema.get_field_index("data")
    data = ["{}", *table.column(index).to_pylist()[1:]]
    return table.set_column(index, "data", pa.array(data, pa.string()))


def test_whatever_differs_from_the_store_is_found(
    spark, spark_connection, spark_store, spark_database_url, folder
):
    """Counts and hashes by category and day find every difference from the store."""
    spark_store.write([deposit(f"d{n}") for n in range(4)], COMMANDS)
    age(spark_connection, "2026-01-01")
    age(spark_connection, "2026-01-02", first=3)
    declaration = Declaration.of(account)
    category = account.command_category
    with exported_snapshot(spark_database_url) as snapshot:
        archiving.write(spark, snapshot, declaration, folder, after={}, until={category: 4})
        query = CategoryQuery(category, ["category", *COLUMNS], declaration)
        expected = {category: snapshot.checksums(query, 1, 4)}
    assert archiving.verified(spark, folder, expected) == []

    def differences(harm):
        damaged = folder.with_name("damaged")
        shutil.copytree(folder, damaged)
        (path,) = damaged.glob("*/day=2026-01-01/*.parquet")
        harm(path)
        found = archiving.verified(spark, damaged, expected)
        shutil.rmtree(damaged)
        return [line.partition(": ")[0] for line in found]

    first, second = f"{category} of 2026-01-01", f"{category} of 2026-01-02"
    assert differences(lambda path: rewrite(path, change_data)) == [first]
    assert differences(lambda path: rewrite(path, lambda t: pa.concat_tables([t, t]))) == [first]
    assert differences(lambda path: rewrite(path, lambda t: t.slice(1))) == [first]
    assert differences(lambda path: path.unlink()) == [first]
    assert differences(lambda path: path.write_bytes(path.read_bytes()[:-9])) == [first]
    there_too = "day=2026-01-02"
    assert differences(lambda path: path.rename(path.parents[1] / there_too / path.name)) == [
        first,
        second,
    ]


def test_damage_is_found_later_and_nothing_is_offered(
    spark_connection, spark_store, archive, reconcile, folder
):
    """A damaged file blocks everything until it is restored."""
    spark_store.write([open_(), deposit("d1")], COMMANDS)
    drain(spark_connection)
    age(spark_connection, OLD)
    archive()
    spark_store.write(deposit("d2"), COMMANDS)
    drain(spark_connection)
    age(spark_connection, OLD)
    (path,) = folder.glob("run=*/category=account%3Acommand/*/*.parquet")
    whole, checksum = path.read_bytes(), path.with_name(f".{path.name}.crc").read_bytes()
    rewrite(path, change_data)
    result = archive()
    (difference,) = result.differences
    assert difference.startswith(f"{path.relative_to(folder)} has ")
    assert (added(result), result.removable) == ([0, 0, 0], False)
    path.unlink()
    assert not archive().removable
    with pytest.raises(ArchiveError, match="is missing; put it back from a copy"):
        reconcile()
    path.write_bytes(whole[:-1] + b"x")  # of the same size
    for use in (reconcile, lambda: there(folder)):
        with pytest.raises(ArchiveError, match=rf"{path.name} has another SHA-256"):
            use()
    path.write_bytes(whole)
    path.with_name(f".{path.name}.crc").write_bytes(checksum)
    assert added(archive()) == [1, 1, 1]


@pytest.mark.long
def test_an_archive_that_does_not_fit_is_refused(
    spark_connection, spark_store, archive, reconcile, folder
):
    """An archive that does not fit is refused in one line that says what to do."""
    with pytest.raises(ArchiveError, match="There is no archive in"):
        reconcile()
    spark_store.write([open_(), deposit("d1")], COMMANDS)
    drain(spark_connection)
    age(spark_connection, OLD)
    archive()
    before = contents(folder)
    # What a run leaves that was killed.
    shutil.copytree(folder / "run=000001", folder / ".new-0123abcd" / "run=000002")
    (folder / "_LOCK").write_text(".new-0123abcd\n")
    # What no run has left.
    (folder / ".new").mkdir()
    assert reconcile() == reconcile(with_archive=False)
    assert added(archive()) == [0, 0, 0]
    assert [path.name for path in folder.glob(".new*")] == [".new"]
    assert contents(folder) == before
    other = Component("savings", id="a_id")
    other.reserve(Deposit, into=RESERVED, key="key")
    other.handle(Deposit)(lambda command, entity, context: None)
    with pytest.raises(ArchiveError, match="of the component 'account', not 'savings'"):
        archive(other)
    with (
        archive_folder.opened(folder, "account", Declaration.of(account).to_json()),
        pytest.raises(ArchiveError, match="in use by another run"),
    ):
        archive()
    spark_connection.execute("UPDATE message_store.messages SET id = gen_random_uuid()")
    spark_connection.execute("UPDATE reservation.positions SET message_id = NULL")
    for run in (archive, reconcile):
        with pytest.raises(ArchiveError, match="it is another store, or messages were deleted"):
            run()
    (folder / "run=000001").rename(folder / "run=000002")
    with pytest.raises(ArchiveError, match="lacks run=000001; put it back from a copy"):
        archive()
    (folder / "run=000002").rename(folder / "run=000001")
    (folder / "run=000001" / "_manifest.json").write_text("{")
    with pytest.raises(ArchiveError, match="cannot be read"):
        archive()
    (folder.parent / "file").touch()
    with pytest.raises(ArchiveError, match="cannot be made"):
        archive_folder.opened(folder.parent / "file" / "x", "account", "").__enter__()


@pytest.fixture
def archived_once(spark_connection, spark_store, archive, folder):
    """Archive a few messages; give the file with the commands."""
    spark_store.write([open_(), deposit("d1"), deposit("d2")], COMMANDS)
    drain(spark_connection)
    age(spark_connection, OLD)
    archive()
    (path,) = folder.glob("run=*/category=account%3Acommand/*/*.parquet")
    return path


def test_a_file_that_the_manifest_does_not_list_is_not_counted(archived_once, archive, reconcile):
    """A file that is not in the manifest blocks everything until it is moved away."""
    more = archived_once.with_name("part-more.parquet")
    shutil.copy(archived_once, more)
    with pytest.raises(ArchiveError, match=r"part-more.parquet is not listed in .*; move it away"):
        reconcile()
    (difference,) = archive().differences
    assert "part-more.parquet is not listed" in difference
    more.unlink()
    assert not archive().differences


def test_an_archive_of_another_store_is_refused(
    spark_connection, archived_once, archive, reconcile, folder
):
    """An archive of another store is recognized by the store's id, even with equal messages."""
    spark_connection.execute("UPDATE reservation.store_identity SET id = gen_random_uuid()")
    (store,) = spark_connection.execute("SELECT reservation.store_id()::text").fetchone()
    for use in (archive, reconcile):
        with pytest.raises(ArchiveError, match=f"is of the store .*, and this store is {store}"):
            use()
    # What an earlier version wrote knows no id, and is recognized by its last message.
    path = folder / "run=000001" / "_manifest.json"
    manifest = msgspec.json.decode(path.read_bytes())
    del manifest["store"], manifest["digest"]
    path.write_bytes(msgspec.json.encode({**manifest, "version": 1}))
    assert not archive().differences


def test_only_the_owner_can_read_an_archive(archived_once, folder):
    """Folders have mode 0700 and files 0600, whatever the umask."""
    modes = {
        (path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in [folder, *folder.rglob("*")]
    }
    assert modes == {(True, 0o700), (False, 0o600)}


def test_messages_that_differ_from_the_archive_are_not_removed(
    spark_connection, archived_once, folder
):
    """Messages that differ from the archive are kept and reported; the others are removed."""
    spark_connection.execute(
        "UPDATE message_store.messages SET time = time + interval '1 microsecond' "
        "WHERE global_position = 2"
    )
    (step,) = prune_archived(account, there(folder))(spark_connection, True, 1000)
    assert (step.count, step.differing) == (1, (2,))
    left = spark_connection.execute(
        "SELECT global_position FROM message_store.messages WHERE global_position <= 3 ORDER BY 1"
    ).fetchall()
    assert left == [(2,), (3,)]


@pytest.fixture
def planted(spark_connection, spark_store):
    """Plant findings of most kinds among archived and stored messages."""
    connection, store = spark_connection, spark_store
    for half in ("old", "new"):
        mine, twice = f"d-{half}", f"t-{half}"
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
                Write(deposit(twice), f"{RESERVED}-123+{mine}"),
            ]
        )
        drain(connection)
        if half == "old":
            last = connection.execute("SELECT max(global_position) FROM message_store.messages")
            (reached,) = last.fetchone()
            age(connection, "2026-02-01")
        else:
            age(connection, YOUNG, first=reached + 1)
    store.write([deposit("pending"), deposit("both")], COMMANDS)
    return connection


@pytest.mark.long
def test_archive_and_store_are_reconciled_as_the_store_alone(
    planted, archive, reconcile, folder, monkeypatch
):
    """Archive and store together give the same counts, findings and durations."""
    wanted = reconcile(with_archive=False, details=True)
    assert wanted.findings
    short = dataclasses.replace(wanted, latency=(), volume=(), reissues=None)
    # Of a store that is not small only what is doubtful is looked at row by row.
    with monkeypatch.context() as patched:
        patched.setattr(snapshots, "_SMALL", 0)
        assert reconcile(with_archive=False) == short
    result = archive()
    assert all(0 < category.added < 20 for category in result.categories)
    assert reconcile() == short
    steps = prune_archived(account, there(folder), timedelta(days=1))(planted, True, 1000)
    commands, copies, _ = added(result)
    assert [(step.kind, step.of, step.count) for step in steps] == [
        # The last one stays, and the conflict, which is an open dead letter.
        ("archived commands", "account:command", commands - 2),
        # The last one stays, and what is in its stream.
        ("archived reservations", RESERVED, copies - 2),
    ]
    assert reconcile(details=True) == wanted
    monkeypatch.setattr(snapshots, "_SMALL", 0)
    assert reconcile() == short


@pytest.mark.long
def test_a_state_begins_with_an_archive_and_goes_on_without_it(
    planted, spark_store, archive, reconcile, folder, tmp_path
):
    """A state that has read the archive needs it only if a removed message is contradicted."""
    archive()
    list(prune_archived(account, there(folder), timedelta(days=1))(planted, True, 1000))
    state = tmp_path / "state"
    drain(planted)
    reconcile(state=state)
    spark_store.write([deposit("fresh"), deposit("both")], COMMANDS)
    drain(planted)
    assert reconcile(state=state, with_archive=False) == reconcile()
    # It is handled again, because what it repeats was removed.
    spark_store.write(deposit("late-old"), COMMANDS)
    drain(planted)
    with pytest.raises(StateError, match=r"does not hold [12] messages any more .* their archive"):
        reconcile(state=state, with_archive=False)
    assert reconcile(state=state) == reconcile()


@pytest.mark.long
def test_a_state_from_before_an_archive_is_compared_with_both(
    planted, archive, reconcile, folder, tmp_path
):
    """What was removed from the store since is looked for in the archive."""
    drain(planted)
    state = tmp_path / "state"
    before = reconcile(state=state, with_archive=False)
    archive()
    list(prune_archived(account, there(folder), timedelta(days=1))(planted, True, 1000))
    assert reconcile(state=state, verify=True) == before
    with pytest.raises(
        StateError, match=r"0 messages were changed .*, [1-9]\d* are gone and 0 were"
    ):
        reconcile(state=state, with_archive=False, verify=True)


@pytest.mark.long
@pytest.mark.parametrize("pruned", [False, True])
def test_late_commits_behind_an_archive_are_judged(
    spark_store,
    spark_connection,
    spark_database_url,
    archive,
    reconcile,
    folder,
    tmp_path,
    monkeypatch,
    pruned,
):
    """A late commit behind the archived messages is judged, with a state and without."""
    spark_store.write([open_(), deposit("d1")], COMMANDS)
    with closing(connect(spark_database_url)) as slow:
        for stream in (COMMANDS, f"{RESERVED}-123+late", "account-123"):
            slow.execute(
                "INSERT INTO message_store.messages (stream_name, position, type, data, metadata) "
                """VALUES (%s, 90, 'Deposit', '{"accountId": "123", "depositId": "d1", """
                """"amount": 99}', '{}')""",
                [stream],
            )
        spark_store.write([deposit("d2"), deposit("d3")], COMMANDS)
        drain(spark_connection)
        age(spark_connection, OLD)
        state = tmp_path / "state"
        assert all(category.added for category in archive().categories)
        before = reconcile(state=state)
        slow.commit()
    if pruned:
        list(prune_archived(account, there(folder))(spark_connection, True, 1000))
    else:
        assert reconcile() == reconcile(with_archive=False)
    found = reconcile()
    assert {"conflict", "orphan"} <= {finding.finding for finding in found.findings}
    assert found != before
    assert reconcile(state=state) == found
    assert reconcile(state=tmp_path / "another") == found
    monkeypatch.setattr(snapshots, "_SMALL", 0)
    assert reconcile() == found


def former(folder):
    """Make an archive one of the first form, in which contents were hashed in another way."""

    def change_content(table: pa.Table) -> pa.Table:
        index = table.schema.get_field_index("content")
        hashes = [f"former {n}" for n in range(len(table))]
        return table.set_column(index, "content", pa.array(hashes, pa.string()))

    for run in folder.glob("run=*"):
        for path in run.rglob("*.parquet"):
            rewrite(path, change_content)
        manifest = msgspec.json.decode((run / "_manifest.json").read_bytes())
        files = {
            name: {"size": file.size, "digest": file.digest}
            for name, file in archive_folder.files_in(run).items()
            if name != "_manifest.json"
        }
        declaration = json.loads(manifest["declaration"])
        del declaration["id"]
        for key in declaration["keys"].values():
            key.pop("kinds", None)
        changed = {
            **manifest,
            "version": 1,
            "files": files,
            "declaration": json.dumps(declaration),
        }
        (run / "_manifest.json").write_bytes(msgspec.json.encode(changed))


@pytest.mark.long
def test_contents_that_the_first_form_hashed_otherwise_are_compared(
    planted, archive, reconcile, folder, monkeypatch
):
    """Contents of an archive in the first format are compared by digests computed anew."""
    wanted = reconcile(with_archive=False)
    archive(before=datetime(2026, 2, 1, microsecond=15, tzinfo=UTC))
    former(folder)
    archive()
    assert [run.version for run in there(folder).runs] == [1, 2]
    assert reconcile() == wanted
    monkeypatch.setattr(snapshots, "_SMALL", 0)
    assert reconcile() == wanted
