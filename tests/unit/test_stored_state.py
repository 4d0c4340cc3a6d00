"""The folder in which a state is, and what becomes of it."""

import hashlib
import stat

import msgspec
import pytest

from spark_jobs.common.errors import StateError
from spark_jobs.state import folder as stored_state
from spark_jobs.state.folder import Head, LastingViolations, StateManifest


def manifest(run, *summaries, lasting=None):
    """Return the manifest of a run."""
    return StateManifest(
        run,
        {"t": Head(1, "id1")},
        seed=1,
        probe=1,
        summaries=[*summaries],
        closed={},
        counts={},
        judged_with="",
        store=None,
        lasting=lasting,
    )


def run(folder, *, commit=True, lasts=False, older=()):
    """Write what a run would write, and commit it; return its number."""
    with stored_state.open_state(folder, "a", "keys") as state:
        number = 1 if state.manifest is None else state.manifest.run + 1
        made = state.begin(number)
        for place in ["summaries", "open", "read", "findings", "lasting"]:
            (made / place).mkdir(parents=True)
            (made / place / "part-0.parquet").write_bytes(f"{number} {place}".encode())
            (made / place / ".part-0.parquet.crc").write_bytes(b"crc")
            (made / place / "_SUCCESS").touch()
        if commit:
            lasting = LastingViolations(f"{made.name}/lasting", {}, None) if lasts else None
            state.put(manifest(number, *older, f"{made.name}/summaries", lasting=lasting))
    return number


@pytest.fixture
def written(tmp_path):
    """Give a state that one run has written."""
    run(tmp_path / "state", lasts=True)
    return tmp_path / "state"


def refusal(folder):
    """Return why a state is refused."""
    with pytest.raises(StateError) as refused, stored_state.open_state(folder, "a", "keys"):
        pass
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_file_of_a_state_that_is_not_as_it_was_is_named(written):
    """A file of a state that is missing, changed or unknown is named."""
    paths = sorted(written.glob("run-000001/**/*.parquet"))
    assert len(paths) == 5  # summaries, open groups, what was read, findings, what lasts
    for path in paths:
        whole = path.read_bytes()
        path.unlink()
        assert f"{path} is missing; name another folder" in refusal(written)
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        path.with_name(f".{path.name}.crc").unlink()
        assert f"{path} has another SHA-256" in refusal(written)
        path.write_bytes(whole)
        more = path.with_name("more.parquet")
        more.write_bytes(whole)
        assert f"{more} is not listed in the manifest" in refusal(written)
        more.unlink()
    with stored_state.open_state(written, "a", "keys") as state:
        assert state.manifest.run == 1


def test_the_manifest_of_a_state_is_as_it_was_written(written, tmp_path):
    """A changed count or a path that leads elsewhere in the manifest is refused."""
    path, current = written / "run-000001" / "manifest.json", written / "CURRENT"
    text = path.read_bytes()
    path.write_bytes(text.replace(b'"run":1', b'"run":2'))
    assert "was changed after it was written" in refusal(written)
    changed = text.replace(b"run-000001/", b"../run-000001/")
    path.write_bytes(changed)
    current.write_text(f"run-000001 {hashlib.sha256(changed).hexdigest()}\n")
    assert "which leads outside of it" in refusal(written)
    changed = msgspec.json.encode({**msgspec.json.decode(text), "summaries": ["../elsewhere"]})
    path.write_bytes(changed)
    current.write_text(f"run-000001 {hashlib.sha256(changed).hexdigest()}\n")
    assert "does not list the files of '../elsewhere'" in refusal(written)
    path.write_bytes(text)
    for name in ("../state/run-000001", "/run-000001", "run-000001/../run-000001"):
        current.write_text(f"{name} {hashlib.sha256(text).hexdigest()}\n")
        assert refusal(written)
    current.write_text(f"run-000001 {hashlib.sha256(text).hexdigest()}\n")
    (written / "run-000001").rename(tmp_path / "elsewhere")
    (written / "run-000001").symlink_to(tmp_path / "elsewhere")
    assert "which leads outside of it" in refusal(written)


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    """Folders and files of other programs are left alone, even with similar names."""
    for name in ("run-1/model", "run-000001/model", "CURRENT"):
        place = tmp_path / name.partition("/")[0]
        folder = tmp_path / f"of-{place.name}"
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("MANIFEST-000004\n")
        (folder / "LOCK").touch()  # as RocksDB has it, beside CURRENT
        before = sorted(folder.rglob("*"))
        assert f"not empty and contains no state: it holds {place.name!r}" in refusal(folder)
        assert sorted(folder.rglob("*")) == before
    empty = tmp_path / "empty"
    empty.mkdir()
    with stored_state.open_state(empty, "a", "keys") as state:
        assert state.manifest is None


def test_only_folders_that_a_manifest_names_are_removed(written):
    """Only obsolete folders and those of a dead run are removed."""
    (written / "run-mine").mkdir()
    (written / "run-000009").mkdir()

    def folders():
        return [path.name for path in sorted(written.glob("run-0*"))]

    assert run(written, older=["run-000001/summaries"]) == 2
    assert run(written, commit=False) == 3  # it dies
    assert folders() == ["run-000001", "run-000002", "run-000003", "run-000009"]
    assert run(written) == 3  # of the first two nothing is needed any more
    with stored_state.open_state(written, "a", "keys") as state:
        assert folders() == ["run-000003", "run-000009"]
        assert state.manifest.needless == ["run-000001", "run-000002"]
    (written / "run-000004").mkdir()
    with pytest.raises(StateError, match="run-000004 is not part of the state in its folder"):
        run(written)
    assert folders() == ["run-000003", "run-000004", "run-000009"]
    assert (written / "run-mine").exists()


def test_a_folder_without_files_is_no_part_of_a_state(tmp_path):
    """A folder without files is refused: the workers wrote them on their own machines."""
    with stored_state.open_state(tmp_path, "a", "keys") as state:
        made = state.begin(1)
        (made / "fingerprints").mkdir(parents=True)
        with pytest.raises(StateError, match="does not see what was written to"):
            state.put(manifest(1, f"{made.name}/summaries"))


def test_only_the_owner_can_read_a_state(written):
    """Folders have mode 0700 and files 0600, whatever the umask."""
    modes = {
        (path.is_dir(), stat.S_IMODE(path.stat().st_mode))
        for path in [written, *written.rglob("*")]
    }
    assert modes == {(True, 0o700), (False, 0o600)}


def test_a_state_of_another_store_is_refused(written):
    """A state of another store is recognized by its id, or else by its messages."""
    with stored_state.open_state(written, "a", "keys") as state:
        state.manifest = msgspec.structs.replace(state.manifest, store="one")
        state.check({}, None)
        state.check({}, "one")
        with pytest.raises(StateError, match="is of the store one, and this store is another"):
            state.check({}, "another")


def test_a_state_that_is_begun_anew_goes_on_after_that(written):
    """What is read and judged anew counts from then on, and what was reported stays."""
    with stored_state.open_state(written, "a", "keys") as state:
        state.begin_anew()
        assert state.judged is None
        lasting = state.manifest.lasting
        assert lasting is not None
        folder = state.begin(state.manifest.run + 1)
        for place in ("summaries", "open", "read", "findings"):
            (folder / place).mkdir()
            (folder / place / "part-0.parquet").write_bytes(b"anew")
        state.put(manifest(2, f"{folder.name}/summaries", lasting=lasting))
        assert state.judged is state.manifest


def test_a_state_that_another_run_has_locked_is_refused_without_opening_it(tmp_path):
    """It is refused as long as it is locked; a look at it locks nothing."""
    with (
        stored_state.open_state(tmp_path / "state", "a", "keys"),
        pytest.raises(StateError, match="is in use by another run"),
    ):
        stored_state.refuse_others(tmp_path / "state")
    stored_state.refuse_others(tmp_path / "state")
    stored_state.refuse_others(tmp_path / "new")
    assert not (tmp_path / "new").exists()
