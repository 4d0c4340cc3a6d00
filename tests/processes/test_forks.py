"""What was opened before a fork: a pool of ours is made anew in it, everything else is refused."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.apps.http_app import consuming
from tests.store.test_http import balance
from tests.support.consuming import until
from tests.support.started import PATIENCE

ROOT = Path(__file__).parents[2]


class Programs:
    """A process that runs the programs of `tests.apps.forking`, as often as it is asked to."""

    def __init__(self, errors: Path) -> None:
        self._errors = errors
        self._written = errors.open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore::DeprecationWarning", "-m", "tests.apps.forking"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._written,
            text=True,
        )

    # Any: what a program has found.
    def run(self, name: str, url: str) -> Any:
        """Run one of the programs, and return what it found."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([name, url]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, self._errors.read_text()
        return json.loads(line)

    def close(self) -> str:
        """Have it end by itself; return what it said."""
        self._process.communicate(timeout=PATIENCE)
        self._written.close()
        assert self._process.returncode == 0
        return self._errors.read_text()


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """Give the process that runs programs, which has nothing to complain of in the end."""
    running = Programs(tmp_path_factory.mktemp("forking") / "errors")
    yield running
    assert running.close() == ""


def check_answers(said: list[Any], connection: Any) -> None:
    """Compare what writers were told with what is stored."""
    assert not [one for one in said if not isinstance(one, dict)]
    rows = connection.execute(
        "SELECT id::text, stream_name, position FROM message_store.messages "
        "WHERE stream_name LIKE 'account-%%'"
    ).fetchall()
    stored = {id_: (stream, position) for id_, stream, position in rows}
    for one in said:
        if one["position"] is None:
            assert one["id"] not in stored
        else:
            assert stored.pop(one["id"]) == (one["stream"], one["position"])
            assert one["expected"] in (None, one["position"] - 1)
    assert not stored
    taken = [one for one in said if one["position"] is not None]
    assert 0 < len(taken) < len(said)  # there were races
    assert len({one["process"] for one in said}) > 1


@pytest.mark.parametrize("name", ["many_children", "many_async_children"])
def test_many_forks_write_at_once(programs, database_url, connection, name):
    """Each child of a process that goes on writing gets the answers to its own writes."""
    found = programs.run(name, database_url)
    assert not [one for one in found if not isinstance(one, list)]
    check_answers([one for child in found for one in child], connection)


def test_a_fork_that_ends_ends_no_session(programs, database_url):
    """Whichever way a child ends, nothing is sent on the sessions of its parent."""
    found = programs.run("endings", database_url)
    assert found["statuses"] == [0, 0, 0]
    assert found["before"] == found["after"]
    assert len(found["before"]) == 3


def test_what_cannot_be_made_anew_is_refused(programs, database_url, connection):
    """A store that was given its connection or pool raises one clear error, as does our own."""
    found = programs.run("refused", database_url)
    assert len(found) == 3
    for text in found.values():
        assert "was opened by another process" in text
        assert "after the fork" in text
    assert connection.execute("SELECT count(*) FROM message_store.messages").fetchone() == (0,)


# A fork that Python does not know of, forks in forks, and forks while threads use the store.
OTHERS = {
    "without_hooks": {"positions": [1, 2], "sessions": [1, 2, True]},
    "grandchildren": [[0, [0, 1]], [0, [0, 1]]],
    "many_forks": [0] * 4,
}


@pytest.mark.parametrize("name", OTHERS)
def test_every_fork_has_a_pool_of_its_own(programs, database_url, name):
    """However deep it is, and whatever locks a thread of its parent held at that moment."""
    assert programs.run(name, database_url) == OTHERS[name]


def test_waiting_for_an_outcome_before_and_in_a_fork(programs, database_url, connection):
    """A child has notices of its own, and its end does not end those of its parent."""
    found = programs.run("waiting", database_url)
    assert found["states"] == ["pending"] * 4
    assert found["status"] == 0
    assert found["kept"]


def test_a_handler_that_forks(programs, database_url):
    """Its fork cannot use the connection of the batch, nor end it; a signal for it is its own."""
    found = programs.run("handlers", database_url)
    (used, failed), stopped, (returned, _), (again, _) = found["said"]
    assert "after the fork" in used
    assert "after the fork" in again
    assert failed != 0
    assert stopped == ["here", -signal.SIGTERM]
    assert returned == "here"
    assert found["notes"] == ["0", "1", "2", "3"]


def test_requests_in_forks_of_a_process_that_answered_some(database_url, connection, tmp_path):
    """Each process has its own connections, and an answer is the same in all of them."""
    answering = Programs(tmp_path / "errors")
    with consuming(database_url):
        found = answering.run("over_http", database_url)
        assert answering.close() == ""
    answers = [*found["children"], found["last"]]
    assert {answer[0]["drawn"] for answer in answers} == {found["first"]["drawn"]}
    assert len({answer[1]["drawn"] for answer in answers}) == 1
    assert len({answer[2]["drawn"] for answer in answers}) == len(answers)
    assert balance(connection) == 2 + len(answers)


def test_the_server_notices_the_end_of_a_process_whose_fork_goes_on(
    database_url, connection, tmp_path
):
    """The child keeps no socket of its parent's open, so the locks of that session are free."""
    ending = Programs(tmp_path / "errors")
    found = ending.run("orphan", database_url)
    session = "SELECT FROM pg_stat_activity WHERE pid = %s"
    try:
        until(lambda: not connection.execute(session, [found["session"]]).fetchall())
        os.kill(found["child"], 0)  # it goes on
    finally:
        os.kill(found["child"], signal.SIGKILL)
    assert ending.close() == ""
