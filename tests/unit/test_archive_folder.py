"""The folder in which an archive is, and whether it still is what was written."""

import shutil
from datetime import UTC, datetime

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from reservation.errors import ArchiveError
from spark_jobs.archive import archive_folder
from spark_jobs.archive.manifest import ArchiveManifest, ArchivePart, DayChecksums

TIME = datetime(2026, 1, 1, tzinfo=UTC)
DATA = "category=a%3Acommand/day=2026-01-01/part-0.parquet"
ROW = {
    "global_position": 1,
    "id": "0",
    "stream_name": "a:command-1",
    "position": 0,
    "type": "Open",
    "time": TIME,
    "data": "{}",
    "metadata": None,
}


def add(folder, store="one"):
    """Let a run add a file to the archive; return the file."""
    with archive_folder.open_archive(folder, "a", '{"keys":{}}') as (archive, lock):
        made = archive.begin(lock)
        (made / DATA).parent.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist([ROW] * 3), made / DATA)
        kept = DayChecksums(3, "0.0")
        part = ArchivePart(1, 1, "id", kept, {"2026-01-01": kept})
        archive.put(
            made,
            archive_folder.files_in(made),
            time=TIME,
            before=TIME,
            categories={"a:command": part},
            store=store,
        )
        return folder / made.name / DATA


@pytest.fixture
def folder(tmp_path):
    """Give the place of the archive."""
    return tmp_path / "archive"


def there(folder, **options):
    return archive_folder.read_archive(folder, "a", '{"keys":{}}', **options)


def refusal(folder):
    with pytest.raises(ArchiveError) as refused:
        there(folder)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_messages_come_in_batches(folder):
    """Messages of the requested category are given in batches of the requested size."""
    add(folder)
    archive = there(folder)
    assert [len(batch.digests) for batch in archive.portions("a:command", 2)] == [2, 1]
    assert list(archive.portions("a", 2)) == []


def test_a_file_that_is_not_as_it_was_is_named(folder):
    """A file that is missing, changed or too many is named."""
    path = add(folder)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert refusal(folder) == (
        f"{path} has another SHA-256 than when it was written; put it back from a copy"
    )
    path.unlink()
    assert refusal(folder) == f"{path} is missing; put it back from a copy"
    path.write_bytes(whole)
    for place in (path.with_name("more.parquet"), folder / "more.parquet", folder / "x=1" / "y"):
        place.parent.mkdir(exist_ok=True)
        shutil.copy(path, place)
        assert refusal(folder).startswith(f"{place} is not listed in ")
        assert refusal(folder).endswith("; move it away")
        place.unlink()
    assert there(folder).runs


def change(path, **values):
    """Replace values of a manifest, as a run would have written it."""
    manifest = msgspec.json.decode(path.read_bytes(), type=ArchiveManifest)
    changed = msgspec.structs.replace(manifest, **values)
    path.write_bytes(msgspec.json.encode(changed.digested()))


@pytest.mark.parametrize("damage", [(b'"last":', b'"last":1'), (b'"count":', b'"count":1')])
def test_a_manifest_that_was_changed_is_refused(folder, damage):
    """A manifest that was changed in any value is refused."""
    add(folder)
    path = folder / "run=000001" / "_manifest.json"
    written = path.read_bytes()
    assert damage[0] in written
    path.write_bytes(written.replace(*damage))
    assert "manifest in run=000001 that was changed" in refusal(folder)
    path.write_bytes(written)
    assert there(folder).runs


def test_files_that_a_run_adds_meanwhile_are_not_read(folder):
    """Files that another run adds meanwhile are not read."""
    add(folder)
    archive = there(folder)
    add(folder)
    assert archive.faults() == []
    later = folder / "run=000002" / "_manifest.json"
    change(later, time=datetime(2026, 2, 1, tzinfo=UTC))
    assert [run.run for run in there(folder, as_of=TIME).runs] == [1]
    (folder / "run=000002" / "more.parquet").touch()
    assert "more.parquet is not listed in the manifest" in refusal(folder)


def test_a_manifest_that_leads_outside_is_refused(folder, tmp_path):
    """A manifest may not lead outside the folder by a path or a link."""
    data = add(folder)
    path = folder / "run=000001" / "_manifest.json"
    files = there(folder).runs[0].files
    shutil.copy(data, tmp_path / "outside.parquet")
    for name in ("../../outside.parquet", str(tmp_path / "outside.parquet")):
        change(path, files={**files, name: files[DATA]})
        assert "is a path that leads outside" in refusal(folder)
    change(path, files=files)
    data.unlink()
    data.symlink_to(tmp_path / "outside.parquet")
    assert "is a symbolic link" in refusal(folder)
    (folder / "run=000001").rename(tmp_path / "run=000001")
    (folder / "run=000001").symlink_to(tmp_path / "run=000001")
    assert "has a symbolic link instead of the folder run=000001" in refusal(folder)


def test_an_archive_knows_its_store(folder):
    """An archive has the id of its store, unless the store or the archive predates ids."""
    add(folder, store=None)
    there(folder).require_store("another")
    add(folder, store="one")
    archive = there(folder)
    archive.require_store("one")
    archive.require_store(None)
    with pytest.raises(ArchiveError, match="is of the store one, and this store is another"):
        archive.require_store("another")


def test_a_folder_of_something_else_is_left_alone(folder):
    """A folder with other contents is left unchanged, without a lock file."""
    (folder / ".new").mkdir(parents=True)
    (folder / ".new" / "thesis").touch()
    before = sorted(folder.rglob("*"))
    with pytest.raises(
        ArchiveError, match=r"not empty and contains no archive: it holds '.new'; name"
    ):
        add(folder)
    assert sorted(folder.rglob("*")) == before


def test_only_what_a_run_that_died_has_left_is_removed(folder):
    """Only the files of a dead run, which its lock names, are removed."""
    add(folder)
    for name in (".new", ".new-00000000", ".new-11111111"):
        (folder / name / "run=000002").mkdir(parents=True)
    for noted, left in (
        (".new-00000000", [".new", ".new-11111111"]),
        ("../archive/.new", [".new", ".new-11111111"]),
        ("run=000001", [".new", ".new-11111111"]),
    ):
        (folder / "_LOCK").write_text(f"{noted}\n")
        with archive_folder.open_archive(folder, "a", '{"keys":{}}') as (archive, _):
            assert len(archive.runs) == 1
        assert sorted(path.name for path in folder.glob(".*")) == left
