"""The fingerprints that a state keeps, and what is found among them."""

import random

import numpy as np
import pyarrow as pa
import pytest

from spark_jobs.reconciliation.state import known
from spark_jobs.reconciliation.state.known import Known, Watched
from tests.chance import seeds

pytestmark = pytest.mark.spark

JOBS = ("commands", "effects")


@pytest.fixture
def of_files(tmp_path, monkeypatch):
    """Give a function that writes rows to files, of several parts each."""
    monkeypatch.setattr(known, "_ROWS", 4)

    def write(*of_each):
        files = [tmp_path / f"{n}" / "rows.parquet" for n in range(len(of_each))]
        schema = Known([], JOBS).schema
        for file, rows in zip(files, of_each, strict=True):
            known.write(pa.Table.from_pylist(rows, schema), file)
        return Known(files, JOBS), files

    return write


def rows(chance, first, count):
    """Return fingerprints with groups, some of which are in none."""
    return [
        {
            "global_position": at,
            "group_commands": chance.choice([None, chance.randrange(-9, 9)]),
            "group_effects": at - chance.randrange(3),
        }
        for at in range(first, first + count)
    ]


def positions(table):
    return sorted(table["global_position"].to_pylist())


@pytest.mark.parametrize("seed", seeds(20))
def test_what_is_asked_for_is_found_and_nothing_else(of_files, seed):
    """Rows are found by their position or group, in whichever part of a file they are."""
    chance = random.Random(seed)
    parts = rows(chance, 1, 11), rows(chance, 12, 1), rows(chance, -5, 5)
    everything, _ = of_files(*parts)
    flat = [row for part in parts for row in part]
    assert everything.count() == len(flat)
    assert positions(everything.table()) == sorted(row["global_position"] for row in flat)
    wanted = chance.sample(range(-8, 16), chance.randrange(6))
    found = everything.at(np.array(wanted, np.int64))
    assert positions(found) == sorted({row["global_position"] for row in flat} & {*wanted})
    for job in JOBS:
        found = everything.around(job, np.array(wanted, np.int64))
        assert positions(found) == sorted(
            row["global_position"] for row in flat if row[known.group(job)] in wanted
        )
        assert found.schema == everything.schema


def test_files_are_combined_without_a_loss(of_files, tmp_path):
    """One file takes the place of several."""
    chance = random.Random(1)
    everything, files = of_files(rows(chance, 1, 9), rows(chance, 10, 2))
    known.combine(files, tmp_path / "together" / "rows.parquet")
    combined = Known([tmp_path / "together" / "rows.parquet"], JOBS)
    assert combined.table().equals(everything.table())
    assert [path.name for path in (tmp_path / "together").iterdir()] == ["rows.parquet"]


def test_what_is_watched_is_kept_with_its_rows_unless_it_is_much(of_files, tmp_path):
    """Of many messages only the positions are kept."""
    everything, _ = of_files(rows(random.Random(1), 1, 3))
    at = np.array([1, 2, 3], np.int64)
    for of_rows in (everything.table(), None):
        folder = tmp_path / f"watched-{of_rows is None}"
        Watched(at, of_rows).write(folder)
        read = Watched.read([*folder.iterdir()])
        assert read.positions.tolist() == [1, 2, 3]
        assert (read.rows is None) == (of_rows is None)
