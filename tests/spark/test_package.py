"""What ``reservation spark package`` makes for Spark's workers."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark

from tests.support.started import run_cli

_IMPORTS = """
import spark_jobs.source.source, reservation
from reservation.app_path import load_component
from reservation.store.schema import install
print(spark_jobs.__file__, load_component("bank:account", None).name)
"""


def test_the_zip_file_for_workers_works_from_where_it_is(tmp_path):
    """It is the same for the same files, holds the queries and the app, and is imported."""
    first, other = tmp_path / "one.zip", tmp_path / "other.zip"
    other.write_text("an earlier one")
    for path in (first, other):
        done = run_cli("spark", "package", "-o", str(path), "--app", "bank:account")
        assert done.returncode == 0, done.stderr
    assert first.read_bytes() == other.read_bytes()
    entries = zipfile.ZipFile(first).namelist()
    assert entries == sorted(entries)
    names = [name for name in entries if not name.endswith("/")]
    assert done.stdout == f"{other}: {len(names)} files\n"
    queries = {"spark_jobs/source/queries.sql", "reservation/store/queries.sql"}
    assert {"bank/component.py", *queries} <= {*names}
    assert {name.partition("/")[0] for name in names} <= {"bank", "reservation", "spark_jobs"}
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", _IMPORTS],
        env={"PYTHONPATH": f"{first}:{Path(pyspark.__file__).parent.parent}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(first) in done.stdout
    assert [path.name for path in tmp_path.iterdir() if path.name[0] == "."] == []
