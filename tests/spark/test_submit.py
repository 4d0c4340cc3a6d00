"""The jobs one by one, as ``spark-submit`` starts them."""

import contextlib
import json
import shutil
import sys

import pytest

from spark_jobs.jobs.submit import main
from tests.apps.bank import drain
from tests.support.controls import COMMANDS, LATER, deposit, open_
from tests.support.started import EXAMPLES


@pytest.fixture
def submitted(spark, database_url, monkeypatch, capfd, tmp_path):
    """Give a function that runs a job; it returns its status and what it prints."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    package = shutil.make_archive(str(tmp_path / "bank"), "zip", EXAMPLES, "bank")
    spark.sparkContext.addPyFile(package)
    monkeypatch.setenv("RESERVATION_DATABASE_URL", database_url)

    def run(*arguments):
        status = 0
        with contextlib.chdir(EXAMPLES):
            try:
                main([*map(str, arguments)])
            except SystemExit as ended:
                status = ended.code
        return status, *capfd.readouterr()

    return run


def test_each_job_alone_gives_its_part(submitted, store, connection, tmp_path):
    """It prints its part of the report as JSON, and ends with the status of the command."""
    store.write([open_(), deposit("d1"), deposit("d1", time=LATER)], COMMANDS)
    drain(connection)
    store.write(deposit("o1"), "accountTransaction-123+o1")
    parts = {}
    for job in ("reconcile", "effects", "latency", "reissues"):
        status, printed, errors = submitted(job, "bank:account")
        assert status == (job == "reconcile"), errors
        parts[job] = json.loads(printed)
    assert parts["reconcile"]["categories"][0]["orphans"] == 1
    assert [row["finding"] for row in parts["reconcile"]["samples"]] == ["orphan"]
    assert parts["effects"]["events"]["causes"] == 2
    stages = {latency["stage"] for latency in parts["latency"]["latency"]}
    assert stages == {"reserved", "handled", "whole"}
    assert parts["reissues"]["reissues"]["senders"][0]["duplicates"] == 1

    archive = tmp_path / "archive"
    status, printed, _ = submitted("archive", "bank:account", archive, "2100-01-01")
    result = json.loads(printed)
    assert (status, result["differences"]) == (0, [])
    assert [one["messages"] for one in result["categories"]] == [3, 1, 2]
    assert len([*archive.glob("run=000001/category=*/day=*/*.parquet")]) == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["archive", "bank:account", "place", "soon"], "'soon' is not a date; write 2026-01-31"),
        (["judge"], "the first argument names a job: reconcile, effects, latency, reissues, archi"),
        (["latency", "bank:account", "--html"], "usage: spark-submit --py-files FILE "),
    ],
)
def test_arguments_that_name_no_job_are_refused(submitted, arguments, said):
    """In one line that says what to write."""
    status, printed, errors = submitted(*arguments)
    assert (status, printed) == (2, "")
    assert errors.startswith(f"Error: {said}")
