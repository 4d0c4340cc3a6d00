"""What a command of Spark has found, and stores with something to be found."""

import json
import re
import subprocess
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from psycopg import Connection
from psycopg.types.json import Jsonb

from spark_jobs.follow.follow import follow
from spark_jobs.run import Run

ROOT = Path(__file__).parents[2]

_NAMES = {"commandCategory", "reservationCategory", "category"}


class Reconciled:
    """What ``reservation reconcile --json`` has printed.

    Attributes:
        status: the exit status.
        error: what it printed on standard error.
        report: the report; empty where the command could not run.
    """

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.status = done.returncode
        self.error = done.stderr
        self.report: dict[str, Any] = json.loads(done.stdout) if done.stdout else {}

    @property
    def counts(self) -> list[dict[str, int]]:
        """The counts of each part of the report, under the names of the oracle."""
        parts = [
            *self.report["categories"],
            *self.report["initiations"],
            *self.report["effects"],
            self.report["events"],
            *self.report["subscriptions"],
        ]
        return [numbers_of(part) for part in parts]

    @property
    def findings(self) -> list[tuple[str, int]]:
        """The findings that nobody has accepted, by kind and global position."""
        rows = self.report["samples"]
        return sorted((row["finding"], row["globalPosition"]) for row in rows)

    @property
    def found(self) -> list[str]:
        """The kinds of these findings."""
        return [finding for finding, _ in self.findings]

    @property
    def commands(self) -> dict[str, int]:
        """The counts of the first reservation category that are not 0."""
        return {name: count for name, count in self.counts[0].items() if count}

    def __eq__(self, other: object) -> bool:
        """Whether it has found the same, whenever that was."""
        if not isinstance(other, Reconciled):
            return NotImplemented
        return (self.status, self._lasting) == (other.status, other._lasting)

    __hash__ = None  # type: ignore[assignment]  # a report changes

    @property
    def _lasting(self) -> dict[str, Any]:
        changing = ("time", "snapshotHeldSeconds")
        return {name: of for name, of in self.report.items() if name not in changing}

    def __repr__(self) -> str:
        return f"Reconciled({self.status}, {self.error!r}, {self._lasting})"


def numbers_of(part: Mapping[str, Any]) -> dict[str, int]:
    """Return the counts of a part of a report as JSON has it, under the names of the oracle."""
    return {
        re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name): count
        for name, count in part.items()
        if name not in _NAMES
    }


class Archived:
    """What ``reservation archive --json`` has printed.

    Attributes:
        status: the exit status.
        error: what it printed on standard error.
        result: what was archived; empty where the command could not run.
    """

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.status = done.returncode
        self.error = done.stderr
        self.result: dict[str, Any] = json.loads(done.stdout) if done.stdout else {}

    @property
    def added(self) -> list[int]:
        """How many messages of each category this run has added."""
        return [category["archived"] for category in self.result["categories"]]


def rows_of(folder: Path) -> list[tuple[str, int]]:
    """Return the findings in the table of ``--findings``, by kind and global position."""
    rows = pq.read_table(folder, columns=["finding", "global_position"]).to_pylist()
    return sorted((row["finding"], row["global_position"]) for row in rows)


def head(connection: Connection[Any]) -> int:
    """Return the global position of the last message."""
    ((found,),) = connection.execute("SELECT max(global_position) FROM message_store.messages")
    return int(found)


def insert(
    connection: Connection[Any],
    stream_name: str,
    type_: str,
    data: object,
    metadata: Mapping[str, Any] | None = None,
    *,
    at: int | None = None,
    position: int | None = None,
    id_: str | None = None,
) -> int:
    """Write a message as no client does, at any place; return its global position."""
    ((made,),) = connection.execute(
        "INSERT INTO message_store.messages "
        "(global_position, stream_name, position, type, data, metadata, id) VALUES ("
        "coalesce(%(at)s, nextval('message_store.messages_global_position_seq')), %(stream)s, "
        "coalesce(%(position)s, (SELECT 1 + max(position) FROM message_store.messages m "
        "WHERE m.stream_name = %(stream)s), 0), %(type)s, %(data)s, %(metadata)s, "
        "coalesce(%(id)s::uuid, gen_random_uuid())) RETURNING global_position",
        {
            "at": at,
            "stream": stream_name,
            "position": position,
            "type": type_,
            "data": Jsonb(data),
            "metadata": None if metadata is None else Jsonb(metadata),
            "id": id_,
        },
    ).fetchall()
    return int(made)


def age(connection: Connection[Any], time: str, *, first: int = 1) -> None:
    """Set the times of the messages from a global position on, each a microsecond later."""
    connection.execute(
        "UPDATE message_store.messages SET time = %s::timestamp "
        "+ global_position * interval '1 microsecond' WHERE global_position >= %s",
        [time, first],
    )


class Rounds:
    """The rounds of a follower, between which something is done; it is told what they report.

    Attributes:
        told: the events that were reported.
        follower: it, from its first round on.
    """

    def __init__(self, run: Run, *between: Callable[["Rounds"], object]) -> None:
        self._run = run
        self._between = list(between)
        self.told: list[Any] = []
        self.follower: Any = None

    def go(self) -> "Rounds":
        """Follow until nothing is left to be done."""
        follow(self._run, self, self._wait, lambda _: nullcontext())
        return self

    def _wait(self, seconds: float) -> bool:
        """Do what is next after a round, again if it returns False; stop when there is nothing."""
        if seconds == 0:
            return False
        if not self._between:
            return True
        if self._between[0](self) is not False:
            self._between.pop(0)
        return False

    @property
    def findings(self) -> list[tuple[bool, str]]:
        """What was reported: whether it was settled, and its kind."""
        return [(event.is_mended, event.violation.finding) for event in self.told]

    def began(self, follower: Any) -> None:
        self.follower = follower

    def happened(self, event: Any) -> None:
        self.told.append(event)

    def looked(self, follower: Any) -> None:
        pass

    def waits(self, why: str) -> None:
        raise AssertionError(why)


def anything_told(rounds: Rounds) -> bool:
    """Whether anything was reported so far."""
    return bool(rounds.told)
