"""Rounds of ``--follow`` over one database, at times after the first round."""

from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

from bank import account
from spark_jobs.follow.rounds import Follower
from spark_jobs.reconciliation.reconcile import in_session
from spark_jobs.reconciliation.run import Run, judged_by
from spark_jobs.reconciliation.state import stored_state
from spark_jobs.snapshot.snapshot import exported_snapshot
from tests.processes import EXAMPLES

GRACE = timedelta(seconds=60)


class Heard:
    """An audience that keeps what is reported."""

    def __init__(self):
        self.events = []

    def happened(self, event):
        self.events.append(event)

    def take(self):
        """Return what was reported since the last time."""
        events, self.events = self.events, []
        return [(event.is_mended, event.violation.finding) for event in events]


class Following:
    """Rounds over one database and one state, at times after the first look."""

    def __init__(
        self,
        spark,
        database_url,
        folder,
        component=account,
        app="bank:account",
        app_dir=EXAMPLES,
    ):
        self.run = Run(component, app, app_dir, database_url, grace=GRACE, state=folder)
        self.heard = Heard()
        self.follower = None
        self._spark = spark
        self._began = None

    @contextmanager
    def started(self, heard=None):
        """Start a follower that goes on with the state."""
        declaration = judged_by(self.run)
        name = self.run.component.name
        with stored_state.opened(self.run.state, name, declaration) as state:
            self.follower = Follower(self.run, state, self._spark, heard or self.heard)
            yield self.follower

    def round(self, seconds):
        """Do a round at a number of seconds after the first; return what is reported."""
        with exported_snapshot(self.run.database_url) as snapshot:
            self._began = self._began or snapshot.time
            look = self.follower.look_at(
                replace(snapshot, time=self._began + timedelta(seconds=seconds))
            )
        self.follower.round(look)
        return self.heard.take()

    def everything(self):
        """Return the findings of a run over everything."""
        with exported_snapshot(self.run.database_url) as snapshot:
            return in_session(replace(self.run, state=None), snapshot, self._spark)
