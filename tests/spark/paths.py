"""All paths by which a store is reconciled, to be compared with each other."""

from dataclasses import asdict
from functools import partial
from pathlib import Path

from spark_jobs.analysis.sketches import grouping
from spark_jobs.analysis.verdicts import fingerprints, prefilter
from spark_jobs.analysis.verdicts.prefilter import Prefilter, PrefilterInput
from spark_jobs.common.declaration import Declaration
from spark_jobs.reconciliation.full_run import FullRun
from spark_jobs.reconciliation.reading.categories import Categories
from spark_jobs.reconciliation.reading.jdbc import Jdbc, jdbc_url
from spark_jobs.reconciliation.reconcile import in_session
from spark_jobs.reconciliation.run import Run, jobs
from spark_jobs.reconciliation.state import changes
from spark_jobs.snapshot import snapshot as snapshots
from spark_jobs.snapshot.snapshot import exported_snapshot
from tests.spark.following import Following

APP_DIR = Path(__file__).parents[2]


def of_report(report):
    """Return the counts of a report in the form of the oracle."""
    return _counts(report.categories, report.effects, report.events, report.subscriptions)


def _counts(categories, effects, events, subscriptions):
    names = ("command_category", "reservation_category", "initiates", "category")
    return [
        {name: count for name, count in asdict(part).items() if name not in names}
        for part in (*categories, *effects, events, *subscriptions)
    ]


class Paths:
    """All paths by which a store is judged.

    Attributes:
        following: the rounds of a follower, with a state of its own.
    """

    def __init__(self, spark, database_url, jdbc_address, folder, *, component, app):
        self._component = component
        self._app = app
        self._spark = spark
        self._database_url = database_url
        self._jdbc_address = jdbc_address
        self._folder = folder
        self.following = Following(
            spark, database_url, folder / "followed", component, app, APP_DIR
        )

    def _report(self, **options):
        run = Run(self._component, self._app, APP_DIR, self._database_url, **options)
        with exported_snapshot(self._database_url) as snapshot:
            report = in_session(run, snapshot, self._spark)
        return of_report(report), sorted(
            (finding.finding, finding.global_position) for finding in report.findings
        )

    def _judged(self, make):
        """Return the findings of a run over everything whose parts `make` gives."""
        run = Run(self._component, self._app, APP_DIR, self._database_url)
        with exported_snapshot(self._database_url) as snapshot:
            progress = snapshot.progress(self._component)
            read, messages = make(snapshot, progress)
            found = None if messages is None else Prefilter(jobs(run), messages, progress)
            whole, (reconciling, following) = FullRun(read, progress, found), jobs(run)
            categories = reconciling.results(whole.take(reconciling))
            counted = whole.take(following)
            effects, events = following.results(counted)
            counts = _counts(categories, effects, events, following.subscriptions(counted))
            rows = whole.findings().collect()
        return counts, sorted((row.finding, row.global_position) for row in rows)

    def small(self):
        """Return the result of judging a small store."""
        yield "small", self._report()

    def state(self, name="state", **options):
        """Return the result of continuing from a state and comparing it with the store."""
        yield name, self._report(state=self._folder / name, verify=True, **options)

    def state_of_many(self, monkeypatch, stage):
        """Return the result of continuing from a state where nothing counts as few, or only some.

        What one run has written, Spark or this process, the next reads in the other way.
        """
        with monkeypatch.context() as patched:
            if stage != 1:
                patched.setattr(changes, "HERE", -1)
            if stage != 2:
                patched.setattr(prefilter, "_FEW", -1)
            yield f"state of many {stage}", self._report(state=self._folder / "many", verify=True)

    def state_of_many_in_doubt(self, monkeypatch):
        """Return the result of continuing from a state where what is in doubt counts as much."""
        with monkeypatch.context() as patched:
            patched.setattr(prefilter, "_FEW", -1)
            yield "many in doubt", self._report(state=self._folder / "doubt", verify=True)

    def state_and_archive(self, archive):
        """Return the results of continuing from states that have read what is archived, or not."""
        for name in ("state", "earlier", "earlier"):
            state = self._folder / name
            yield f"archive, {name}", self._report(state=state, archive=archive, verify=True)

    def by_fingerprints(self, monkeypatch):
        """Return the results of judging by fingerprints of the server, of Spark and of JDBC."""
        spark, component = self._spark, self._component
        declaration = Declaration.of(component)

        def made_by_spark(snapshot, progress):
            read = Categories(spark, snapshot, declaration)
            made = fingerprints.of_messages(read, component, progress, "", None)
            seen = partial(grouping.summed, made.mapInArrow, parts=3)
            return read, PrefilterInput(seen, read.at, read.at)

        def row_by_row(snapshot, _):
            return Categories(spark, snapshot, declaration), None

        def through_jdbc(snapshot, _):
            return Jdbc(spark, jdbc_url(self._jdbc_address), snapshot, declaration), None

        with monkeypatch.context() as patched:
            patched.setattr(snapshots, "_SMALL", 0)
            yield "fingerprints of the server", self._report()
            patched.setattr(prefilter, "_FEW", -1)
            yield "fingerprints of the server, many doubtful", self._report()
        yield "fingerprints of Spark", self._judged(made_by_spark)
        yield "row by row", self._judged(row_by_row)
        if self._jdbc_address is not None:
            yield "JDBC", self._judged(through_jdbc)

    def archived(self, monkeypatch, archive):
        """Return the results of reading an archive too, small or not."""
        yield "archive", self._report(archive=archive)
        with monkeypatch.context() as patched:
            patched.setattr(snapshots, "_SMALL", 0)
            yield "archive, by fingerprints", self._report(archive=archive)

    def follow(self, seconds):
        """Return the findings of a follower after a round."""
        with self.following.started() as follower:
            self.following.round(seconds)
            yield "follow", (of_report(follower.report), None)
