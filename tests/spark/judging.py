"""A random store that goes on, judged in each mode of a run, and the answer of the oracle."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from psycopg import Connection

from reservation.maintenance import finding_decisions
from spark_jobs.common.result import VIOLATIONS
from spark_jobs.run import Run
from tests.spark.builders import ROOT, Rounds, head, rows_of
from tests.spark.planting import Planting, component

APP = "tests.spark.planting:component"
ANSWER = Path(__file__).with_name("oracle.sql").read_bytes()

Answer = tuple[list[dict[str, int]], list[tuple[str, int]]]


class Judging:
    """Judges one store in each mode.

    Attributes:
        archived: the folder of the archive.
    """

    def __init__(
        self,
        database_url: str,
        connection: Connection[Any],
        reconcile: Callable[..., Any],
        archive: Callable[..., Any],
        folder: Path,
    ) -> None:
        self._database_url = database_url
        self._connection = connection
        self._reconcile = reconcile
        self._archive = archive
        self._folder = folder
        self._outputs = 0
        self._open: list[str] = []  # the ids of what the last run has found, unless accepted
        self.archived = folder / "archive"

    def planted(self, seed: int) -> Planting:
        """Return what adds to the store."""
        self._partitions = 1 + seed % 3
        self._planting = Planting(self._connection, seed)
        return self._planting

    def consumers_go_on(self) -> None:
        """Give consumers positions, letters, corrections and passes; accept findings; at random."""
        chance = self._planting.chance
        some = chance.sample(self._open, min(5, len(self._open)))
        if some:
            finding_decisions.accept(self._connection, some, "as planted", VIOLATIONS)
        self._planting.consumers(head(self._connection), self._partitions)
        self._planting.corrections(4)
        self._planting.passes(8)

    def head(self) -> int:
        """Return the global position of the last message."""
        return head(self._connection)

    def answer(self) -> Answer:
        """Return the oracle's counts and findings."""
        row = self._connection.execute(ANSWER).fetchone()
        assert row is not None
        *counts, findings = row
        return counts, [tuple(finding) for finding in findings]

    @property
    def kinds(self) -> set[str]:
        """The kinds of findings that the store has."""
        return {finding for finding, _ in self.answer()[1]}

    def full(self, *options: object) -> Answer:
        """Return the counts and findings of the command."""
        self._outputs += 1
        output = self._folder / f"findings-{self._outputs}"
        found = self._reconcile("--findings", output, *options, app=APP, app_dir=ROOT)
        assert found.error == "", found.error
        rows = pq.read_table(output, columns=["id", "is_accepted"]).to_pylist()
        decided = {one.finding for one in finding_decisions.accepted(self._connection)}
        assert {row["id"]: row["is_accepted"] for row in rows} == {
            row["id"]: row["id"] in decided for row in rows
        }
        self._open = sorted({row["id"] for row in rows} - decided)
        return found.counts, rows_of(output)

    def state(self, name: str, *options: object) -> Answer:
        """Return those of a run that goes on with a state."""
        return self.full("--state", self._folder / name, *options)

    def archive(self) -> None:
        """Archive what consumers have read."""
        done = self._archive(app=APP, app_dir=ROOT)
        assert done.status == 0, done.error

    def followed(self, name: str) -> list[dict[str, int]]:
        """Return the counts of a follower after a round that goes on with a state."""
        state = self._folder / name
        run = Run(component, APP, ROOT, self._database_url, state=state)
        report = Rounds(run).go().follower.report
        names = ("command_category", "reservation_category", "initiates", "category")
        return [
            {name: count for name, count in asdict(part).items() if name not in names}
            for part in (*report.categories, *report.effects, report.events, *report.subscriptions)
        ]
