"""The files of a folder against what a manifest lists."""

import os
import stat

import pytest

from spark_jobs.common import files
from spark_jobs.common.files import File


@pytest.fixture
def folder(tmp_path):
    """Give a folder as Spark writes it."""
    folder = tmp_path / "run=000001"
    for name in ("category=a/part-0.parquet", "category=a/part-1.parquet", "_SUCCESS"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    (folder / "category=a" / ".part-0.parquet.crc").write_bytes(b"crc")
    (folder / "_manifest.json").write_bytes(b"{}")
    return folder


@pytest.fixture
def listed(folder):
    """Give the manifest's list of its files."""
    return files.listed(folder, files.data_files(folder))


def found(folder, listed, **options):
    return [(fault.path, fault.what) for fault in files.faults(folder, listed, **options)]


PART = "category=a/part-0.parquet"


def test_files_that_spark_reads_are_listed_with_size_and_digest(folder, listed):
    """Each file that Spark reads is listed with size and digest, and no other."""
    assert sorted(listed) == [PART, "category=a/part-1.parquet"]
    assert listed[PART].size == len(PART)
    assert len(listed[PART].digest) == 64
    assert found(folder, listed) == []


@pytest.mark.parametrize(
    ("name", "harm", "what"),
    [
        (PART, lambda path: path.unlink(), "is missing"),
        (PART, lambda path: path.write_bytes(b"x" + path.read_bytes()[1:]), "another SHA-256"),
        (PART, lambda path: path.write_bytes(b""), "has 0 bytes instead of 25"),
        ("category=a/more.parquet", lambda path: path.touch(), "is not listed"),
        ("category=b/day=1/_=1", lambda path: path.touch(), "is not listed"),
        (PART, lambda path: (path.unlink(), os.mkfifo(path)), "is not a regular file"),
    ],
)
def test_a_file_that_is_not_as_it_was_is_named(folder, listed, name, harm, what):
    """A file that is missing, changed, of another kind or too many is named."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    harm(path)
    ((named, said),) = found(folder, listed)
    assert named == name
    assert what in said


def test_links_are_refused_wherever_they_lead(folder, listed, tmp_path):
    """Links are refused: their target can change unnoticed."""
    (folder / "category=a").rename(tmp_path / "elsewhere")
    (folder / "category=a").symlink_to(tmp_path / "elsewhere")
    faults = found(folder, listed)
    assert ("category=a", "is not listed in the manifest") in faults
    assert (PART, "is a symbolic link or lies behind one") in faults


@pytest.mark.parametrize("path", ["../outside", "/etc/hostname", "a/../../outside", "", "a\0b"])
def test_a_manifest_leads_nowhere_else(folder, listed, path):
    """A path that leads out of the folder is refused, whether or not it exists."""
    (folder.parent / "outside").touch()
    assert (path, "is a path that leads outside of the folder of the manifest") in found(
        folder, {**listed, path: File(0, "")}
    )


def test_only_the_owner_can_read_a_private_folder(folder):
    """A private folder is readable by its owner only, whatever Spark created in it."""
    files.make_private(folder)
    modes = {
        (path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in [folder, *folder.rglob("*")]
    }
    assert modes == {(True, 0o700), (False, 0o600)}
