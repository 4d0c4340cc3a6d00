"""Stores by chance, judged on every path that a run can take, and by SQL written from the docs.

``RESERVATION_TEST_SEED`` says with which seed to begin, ``RESERVATION_TEST_SEEDS`` how many to try.
"""

import os
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path

import pytest

from reservation.postgres.queries import load_queries
from spark_jobs.analysis.verdicts import fingerprints
from spark_jobs.analysis.verdicts.prefilter import PrefilterInput
from spark_jobs.common.declaration import Declaration
from spark_jobs.jobs import archive as archiving
from spark_jobs.reconciliation.full_run import FullRun
from spark_jobs.reconciliation.reading.categories import Categories
from spark_jobs.reconciliation.reading.jdbc import Jdbc, jdbc_url
from spark_jobs.reconciliation.run import Run, in_session, jobs
from spark_jobs.session import size
from spark_jobs.snapshot.snapshot import exported_snapshot
from tests.chance import seeds
from tests.spark.following import Following
from tests.spark.planting import Planting, component

# Each store is judged many times.
pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

SEEDS = seeds(int(os.environ.get("RESERVATION_TEST_SEEDS", "1")))
APP = "tests.spark.planting:component"
APP_DIR = Path(__file__).parents[2]
ANSWER = load_queries("tests.spark", "oracle.sql")["answer"]


def answer(connection):
    """Return the oracle's counts and findings."""
    *counts, findings = connection.execute(ANSWER).fetchone()
    return counts, [tuple(finding) for finding in findings]


def of_report(report):
    """Return the counts of a report in the form of the oracle."""
    names = ("command_category", "reservation_category", "initiates", "category")
    counted = [*report.categories, *report.effects, report.events]
    return [
        {name: count for name, count in asdict(part).items() if name not in names}
        for part in counted
    ]


class Paths:
    """All paths by which a store is judged.

    Attributes:
        following: the rounds of a follower, with a state of its own.
    """

    def __init__(self, spark, database_url, jdbc_address, folder):
        self._spark = spark
        self._database_url = database_url
        self._jdbc_address = jdbc_address
        self._folder = folder
        self.following = Following(
            spark, database_url, folder / "followed", component, APP, APP_DIR
        )

    def _report(self, **options):
        run = Run(component, APP, APP_DIR, self._database_url, **options)
        with exported_snapshot(self._database_url) as snapshot:
            report = in_session(run, snapshot, self._spark)
        return of_report(report), sorted(
            (finding.finding, finding.global_position) for finding in report.findings
        )

    def _judged(self, make):
        """Return the findings of a run over everything whose parts `make` gives."""
        run = Run(component, APP, APP_DIR, self._database_url)
        with exported_snapshot(self._database_url) as snapshot:
            progress = snapshot.progress(component)
            read, prefiltered = make(snapshot, progress)
            whole, (reconciling, following) = FullRun(read, progress, prefiltered), jobs(run)
            categories = reconciling.results(whole.take(reconciling))
            effects, events = following.results(whole.take(following))
            names = ("command_category", "reservation_category", "initiates", "category")
            counts = [
                {name: count for name, count in asdict(part).items() if name not in names}
                for part in (*categories, *effects, events)
            ]
            rows = whole.findings().collect()
        return counts, sorted((row.finding, row.global_position) for row in rows)

    def small(self):
        """Return the result of judging all messages row by row."""
        yield "small", self._report()

    def state(self):
        """Return the result of continuing from a state and comparing it with the store."""
        yield "state", self._report(state=self._folder / "state", verify=True)

    def by_fingerprints(self, monkeypatch):
        """Return the results of judging by fingerprints of the server, of Spark and of JDBC."""
        spark, declaration = self._spark, Declaration.of(component)

        def made_by_spark(snapshot, progress):
            read = Categories(spark, snapshot, declaration)
            made = fingerprints.of_messages(read, component, progress, "", None)
            return read, PrefilterInput(made, read.at)

        def through_jdbc(snapshot, _):
            return Jdbc(spark, jdbc_url(self._jdbc_address), snapshot, declaration), None

        with monkeypatch.context() as patched:
            patched.setattr(size, "_SMALL", 0)
            yield "fingerprints of the server", self._report()
        yield "fingerprints of Spark", self._judged(made_by_spark)
        if self._jdbc_address is not None:
            yield "JDBC", self._judged(through_jdbc)

    def archived(self, monkeypatch, archive):
        """Return the results of reading an archive too, small or not."""
        yield "archive", self._report(archive=archive)
        with monkeypatch.context() as patched:
            patched.setattr(size, "_SMALL", 0)
            yield "archive, by fingerprints", self._report(archive=archive)

    def follow(self, seconds):
        """Return the findings of a follower after a round."""
        with self.following.started() as follower:
            self.following.round(seconds)
            yield "follow", (of_report(follower.report), None)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_path_counts_and_finds_what_the_docs_say(
    spark, spark_connection, spark_database_url, jdbc_address, tmp_path, monkeypatch, seed
):
    """Every path counts and finds the same while a store and its consumers go on."""
    planting = Planting(spark_connection, seed)
    paths = Paths(spark, spark_database_url, jdbc_address, tmp_path)
    archive = tmp_path / "archive"
    monkeypatch.setattr("spark_jobs.reconciliation.run.SAMPLES", 10**6)

    def check(stage, *others):
        (head,) = spark_connection.execute(
            "SELECT max(global_position) FROM message_store.messages"
        ).fetchone()
        planting.consumers(head, 1 + seed % 3)
        planting.corrections(4)
        counts, findings = answer(spark_connection)
        for name, (counted, found) in chain(paths.state(), paths.follow(1000 * stage), *others):
            label = f"{name}, stage {stage}, RESERVATION_TEST_SEED={seed}"
            assert counted == counts, label
            assert found in (findings, None), label

    planting.messages(60)
    check(0, paths.small())
    planting.messages(15)
    planting.messages(10, behind=True)
    check(1, paths.by_fingerprints(monkeypatch))
    with exported_snapshot(spark_database_url) as snapshot:
        before = datetime.now(UTC) + timedelta(days=1)
        assert not archiving.in_session(component, archive, before, snapshot, spark).differences
    check(2, paths.archived(monkeypatch, archive))
