"""The scripts that lead from one version of the schema to the next."""

import pytest

from reservation.store.schema.scripts import Migrations


@pytest.mark.parametrize("names", [["003_gap.sql"], ["002_notes.sql", "002_twice.sql"]])
def test_migrations_are_numbered_without_gaps(tmp_path, names):
    """A missing or repeated number is found before anything is changed."""
    for name in names:
        (tmp_path / name).write_text("SELECT")
    with pytest.raises(ValueError, match="is not number"):
        _ = Migrations(tmp_path).version
