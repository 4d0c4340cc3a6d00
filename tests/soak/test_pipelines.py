"""The examples for data pipelines in Airflow, Dagster, Soda and OpenLineage.

Each of these has an environment of its own, into which pip installs it, because they are large and
ask for versions of what others need too. They start the command line of this checkout.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from psycopg import Connection

from reservation import MessageStore
from tests.apps.bank import RESERVED, drain
from tests.support.controls import COMMANDS, deposit, open_
from tests.support.pages import ROOT, blocks, commands
from tests.support.started import EXAMPLES, run_cli

PAGE = ROOT / "docs/how-to/pipelines.md"
FILES = {
    block.text.partition("\n")[0].removeprefix("# "): block.text
    for language in ("python", "yaml")
    for block in blocks(PAGE, language)
}
AIRFLOW = "apache-airflow-core==3.3.2"
DAGSTER = "dagster==1.13.28"
SODA = "soda-duckdb==4.28.0"
OPENLINEAGE = "openlineage-python==1.54.0"

# Runs the checks of the page in Dagster, and prints what became of them.
RUN_CHECKS = """
import json
from bank_checks import defs

done = defs.resolve_implicit_global_asset_job_def().execute_in_process(raise_on_error=False)
checks = done.get_asset_check_evaluations()
reached = [check.metadata["thresholds"].data for check in checks]
print(json.dumps([done.success, [check.passed for check in checks], reached]))
"""

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Give a function that installs a tool, and returns the folder of its programs."""
    made: dict[str, Path] = {}

    def install(requirement: str) -> Path:
        if requirement not in made:
            folder = tmp_path_factory.mktemp("tool")
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            pip = [folder / "bin/python", "-m", "pip", "install", "--quiet"]
            subprocess.run([*pip, requirement], check=True, timeout=800)
            made[requirement] = folder / "bin"
        return made[requirement]

    return install


def started(
    folder: Path, *command: str | Path, text: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a tool in a folder."""
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        input=text,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


class Program:
    """The program that the page calls /opt/bank/bin/reservation; it notes that it was called."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "reservation"
        self._notes = folder / "notes"
        self._findings = folder / "findings"
        self._path.write_text(
            f'#!/bin/sh\necho called >> {self._notes}\nexec {sys.executable} -P -m cli "$@"\n'
        )
        self._path.chmod(0o755)

    def write_example(self, name: str, folder: Path, delay: str) -> None:
        """Write a file of the page with the paths of the test, in which no retry is waited for."""
        text = FILES[name]
        for shown, used in {
            "/opt/bank/bin/reservation": str(self._path),
            "/opt/bank/app": str(EXAMPLES),
            "/data/findings": str(self._findings),
            delay: delay.partition("=")[0] + "=0",
        }.items():
            assert shown in text or shown == "/data/findings", (name, shown)
            text = text.replace(shown, used)
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(text)

    def calls(self) -> int:
        """Return how often it was called since this was asked last."""
        count = self._notes.read_text().count("called")
        self._notes.unlink()
        return count


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Give the program that the page calls."""
    return Program(tmp_path)


@pytest.fixture
def stores(
    database_url: str, store: MessageStore, connection: Connection[Any]
) -> Iterator[tuple[int, str]]:
    """Give three exit statuses, each with the address of a store for which it comes."""

    def each() -> Iterator[tuple[int, str]]:
        store.write([open_(), deposit()], COMMANDS)
        drain(connection)
        yield 0, database_url
        store.write(deposit("o1"), f"{RESERVED}-123+o1")
        yield 1, database_url
        yield 2, "postgresql://127.0.0.1:1/none"

    return each()


def test_airflow_retries_only_what_is_no_finding(installed, program, stores, tmp_path):
    """A finding fails the task at once; a database that does not answer is tried four times."""
    tool = installed(AIRFLOW) / "airflow"
    program.write_example("reconcile_bank.py", tmp_path / "dags", delay="minutes=5")
    environment = {
        "AIRFLOW_HOME": str(tmp_path / "home"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }

    def airflow(*arguments: str, url: str) -> subprocess.CompletedProcess[str]:
        return started(tmp_path, tool, *arguments, RESERVATION_DATABASE_URL=url, **environment)

    for prepared in (["db", "migrate"], ["dags", "reserialize"]):
        done = airflow(*prepared, url="")
        assert done.returncode == 0, done.stderr
    for status, url in stores:
        done = airflow("dags", "test", "reconcile_bank", url=url)
        expected = {0: (0, 1), 1: (1, 1), 2: (1, 4)}[status]
        assert (done.returncode, program.calls()) == expected, done.stdout + done.stderr
    assert len([*(tmp_path / "findings").glob("run=*")]) == 2


def test_dagster_retries_only_what_is_no_finding(installed, program, stores, tmp_path):
    """A finding is a check that did not pass; a database that does not answer, an error."""
    python = installed(DAGSTER) / "python"
    program.write_example("bank_checks.py", tmp_path, delay="delay=300")
    (tmp_path / "run_checks.py").write_text(RUN_CHECKS)
    orphan = {"name": "orphan", "fails": True, "count": 1, "limit": 0}
    for status, url in stores:
        done = started(tmp_path, python, "run_checks.py", RESERVATION_DATABASE_URL=url)
        assert done.returncode == 0, done.stderr
        success, passed, reached = json.loads(done.stdout.splitlines()[-1])
        expected = {0: (True, [True], 1), 1: (False, [False], 1), 2: (False, [], 4)}[status]
        assert (success, passed, program.calls()) == expected, done.stderr
        named = [{key: found[key] for key in orphan} for one in reached for found in one]
        assert named == ([orphan] if status == 1 else [])


def test_soda_verifies_the_contract(
    installed, database_url, store, connection, tmp_path, monkeypatch
):
    """The contract holds for an orphan, and is broken by a lost command or a missing column."""
    soda = installed(SODA) / "soda"
    monkeypatch.chdir(tmp_path)
    for name in ("datasource.yml", "contract.yml"):
        Path(name).write_text(FILES[name])
    ((_, [(program, *words)]),) = (
        shown for shown in commands(PAGE) if shown[0].startswith("soda ")
    )
    views = blocks(PAGE, "sql")[0].text

    def reconcile() -> None:
        findings = ("--findings", str(tmp_path / "findings"), "--database-url", database_url)
        assert run_cli("reconcile", "bank:account", *findings).returncode == 1

    def verify() -> tuple[int, str]:
        assert program == "soda"
        done = started(tmp_path, soda, *words, SODA_CORE_TELEMETRY_ENABLED="false")
        return done.returncode, done.stdout + done.stderr

    store.write([open_(), deposit("d1"), deposit("d2")], COMMANDS)
    drain(connection)
    store.write(deposit("o1"), f"{RESERVED}-123+o1")
    reconcile()
    with duckdb.connect("findings.duckdb") as duck:
        duck.execute(views)
    status, printed = verify()
    assert status == 0, printed

    connection.execute(
        "DELETE FROM message_store.messages WHERE stream_name = %s", [f"{RESERVED}-123+d1"]
    )
    reconcile()
    status, printed = verify()
    (broken,) = (line for line in printed.splitlines() if "FAILED" in line)
    assert (status, "No command was lost" in broken) == (1, True), printed

    with duckdb.connect("findings.duckdb") as duck:
        duck.execute(views.replace("SELECT * FROM", "SELECT * EXCLUDE (run_time) FROM"))
    status, printed = verify()
    assert (status, "run_time" in printed) == (1, True), printed


def test_openlineage_gets_what_was_reached(installed, database_url, store, tmp_path):
    """The event names what is wrong, as assertions about the table of messages."""
    python = installed(OPENLINEAGE) / "python"
    (tmp_path / "lineage.py").write_text(FILES["lineage.py"])
    store.write(deposit("o1"), f"{RESERVED}-123+o1")
    report = run_cli("reconcile", "bank:account", "--json", "--database-url", database_url)
    log = tmp_path / "events.jsonl"
    transport = {"type": "file", "log_file_path": str(log), "append": True}
    done = started(
        tmp_path,
        python,
        "lineage.py",
        text=report.stdout,
        OPENLINEAGE__TRANSPORT=json.dumps(transport),
    )
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert [event["eventType"] for event in events] == ["START", "COMPLETE"]
    assert len({event["run"]["runId"] for event in events}) == 1
    (messages,) = events[-1]["inputs"]
    checks = messages["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert {(check["assertion"], check["success"]) for check in checks} == {
        ("in-order", False),
        ("orphan", False),
    }
