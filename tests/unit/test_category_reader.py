"""The messages of a category in archives, in their order, read as a consumer does."""

import random
import subprocess
import sys
import tracemalloc
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from reservation.errors import ArchiveError
from reservation.messages.message import StoredMessage
from spark_jobs.archive import archive_folder
from spark_jobs.archive.category_reader import ArchiveFolders
from spark_jobs.archive.manifest import ArchivePart, DayChecksums
from tests.support.pages import ROOT

TIME = datetime(2026, 1, 1, 23, 59, 59, 999_999, tzinfo=UTC)
ALL = 1 << 40  # bytes


def add(folder, *files, category="a", component="one", group=2, large=0, **columns):
    """Let a run add files with messages at some global positions."""
    with archive_folder.open_archive(folder, component, '{"keys":{}}') as (archive, lock):
        made = archive.begin(lock)
        for n, positions in enumerate(files):
            day = TIME + timedelta(days=n)
            path = made / f"category={category}/day={day.date()}/part-{n}.parquet"
            path.parent.mkdir(parents=True)
            rows = [row(at, day, large) | columns for at in positions]
            pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path, row_group_size=group)
        found = sorted(at for positions in files for at in positions)
        sums = DayChecksums(len(found), "0.0")
        part = ArchivePart(found[0], found[-1], f"id {found[-1]}", sums, {})
        times = {"time": TIME, "before": TIME, "store": "one"}
        written = archive_folder.files_in(made)
        archive.put(made, written, categories={category: part}, **times)
    return folder


SCHEMA = pa.schema(
    [
        *((name, pa.int64()) for name in ("global_position", "position")),
        *((name, pa.string()) for name in ("id", "stream_name", "type", "data", "metadata")),
        ("time", pa.timestamp("us", tz="UTC")),
    ]
)


def row(at, time, large):
    return {
        "global_position": at,
        "position": at // 10,
        "id": f"id {at}",
        "stream_name": f"a-{at % 10}",
        "type": "Done",
        "data": f'{{"at": {at}}}' + " " * large,
        "metadata": None,
        "time": time,
    }


def positions(messages):
    return [message.global_position for message in messages]


def reader(*folders, category="a"):
    found = ArchiveFolders(folders).category(category)
    assert found is not None
    return found


def test_a_message_is_as_the_store_has_it(tmp_path):
    """Its time is in UTC, without a zone."""
    add(tmp_path, [7])
    (message,) = reader(tmp_path).read(0, 10, ALL)
    time = TIME.replace(tzinfo=None)
    assert message == StoredMessage("id 7", "a-7", "Done", 0, 7, '{"at": 7}', None, time)


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
def test_files_and_runs_are_merged(tmp_path, limit):
    """Whatever the number of messages that are asked for at a time."""
    add(tmp_path, [1, 4, 5, 9], [2, 3, 10], [6, 7, 8])
    add(tmp_path, [21, 22], [11, 12, 20])
    found, category, after = [], reader(tmp_path), 0
    while batch := category.read(after, limit, ALL):
        assert len(batch) <= limit
        found += positions(batch)
        after = found[-1]
    assert found == [*range(1, 13), 20, 21, 22]
    assert (category.first, category.last, category.count) == (1, 22, 15)


def test_a_read_ends_with_the_message_that_reaches_the_bytes(tmp_path):
    """There is at least one."""
    add(tmp_path, [1, 2, 3], large=1_000)
    category = reader(tmp_path)
    assert positions(category.read(0, 10, 1)) == [1]
    assert positions(category.read(1, 10, 2_000)) == [2, 3]


@pytest.mark.parametrize("seed", range(5))
def test_it_can_be_read_again_from_anywhere(tmp_path, seed):
    """As after a batch that failed, or for partitions at different positions."""
    chance = random.Random(seed)
    there = sorted(chance.sample(range(1, 1_000), 300))
    files = [there[n::3] for n in range(3)]
    add(tmp_path, *files, group=16)
    category, after = reader(tmp_path), 0
    for _ in range(200):
        limit = chance.choice([1, 10, 100])
        batch = positions(category.read(after, limit, ALL))
        assert batch == [at for at in there if at > after][:limit]
        after = chance.choice([after, batch[-1] if batch else 0, chance.randrange(1_000)])


def test_some_messages_are_looked_up(tmp_path):
    """By their global positions, as far as they are there."""
    add(tmp_path, list(range(1, 100)), list(range(200, 300)))
    found = reader(tmp_path).at([3, 150, 250, 999])
    assert {at: one.id for at, one in found.items()} == {3: "id 3", 250: "id 250"}
    assert reader(tmp_path).at([]) == {}


def test_what_is_not_archived_is_told_by_stream_and_position(tmp_path):
    """As the store's messages name those before them."""
    add(tmp_path, list(range(1, 40)), list(range(40, 60)))
    lacking = reader(tmp_path).lacking([("a-3", 5), ("a-3", 6), ("a-4", 0), ("b-1", 0)])
    assert lacking == {("a-3", 6), ("b-1", 0)}


def test_several_archives_are_read_as_one(tmp_path):
    """Of components that read the same category, with each message once."""
    one = add(tmp_path / "one", [1, 2, 3], [5])
    two = add(tmp_path / "two", [1, 2, 3, 5, 7], component="two")
    other = add(tmp_path / "other", [4], category="b", component="three")
    category = reader(one, two, other)
    assert positions(category.read(0, 10, ALL)) == [1, 2, 3, 5, 7]
    assert [position for position, _ in category.ends] == [5, 7]
    assert ArchiveFolders([one, two, other]).categories == ["a", "b"]
    assert ArchiveFolders([one]).category("b") is None


def test_archives_of_different_stores_are_refused(tmp_path):
    """They have other messages at one position."""
    one = add(tmp_path / "one", [1, 2, 3])
    two = add(tmp_path / "two", [1, 2, 3], id="other")
    with pytest.raises(ArchiveError, match="other messages of a at global position 1"):
        reader(one, two).read(0, 10, ALL)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    """Also where it was whole when it was checked."""
    add(tmp_path, [1, 2])
    category = reader(tmp_path)
    (path,) = tmp_path.glob("run=*/*/*/*.parquet")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ArchiveError, match=f"{path} cannot be read"):
        category.read(0, 10, ALL)


def test_a_folder_without_an_archive_is_refused(tmp_path):
    """The way out is said."""
    with pytest.raises(ArchiveError, match="There is no archive in"):
        ArchiveFolders([tmp_path])


def test_nothing_of_spark_is_imported():
    """A consumer's image needs the extra for Parquet only."""
    code = "import spark_jobs.archive.category_reader, sys; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_memory_does_not_grow_with_the_archive(tmp_path):
    """A few portions of files are held, whose messages have 40 MB."""
    add(tmp_path, *(list(range(n, 40_001, 4)) for n in range(1, 5)), group=20_000, large=1_000)
    category, after, number = reader(tmp_path), 0, 0
    tracemalloc.start()
    while batch := category.read(after, 1_000, ALL):
        after, number = batch[-1].global_position, number + len(batch)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert number == 40_000
    assert peak < 25 << 20
