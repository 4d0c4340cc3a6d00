"""``reservation reconcile --follow``: report violations that persist, until SIGTERM or SIGINT."""

import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
from pyspark.sql import SparkSession
from rich.console import Console
from rich.text import Text

from consumers.runtime.stopping import Stop
from spark_jobs.common.concurrency import in_background
from spark_jobs.common.result import VIOLATIONS
from spark_jobs.follow.follow import follow
from spark_jobs.follow.persistence import ViolationEvent
from spark_jobs.follow.rounds import Follower
from spark_jobs.report.lines import as_json_line, as_line, ended
from spark_jobs.report.output import outputs
from spark_jobs.report.prometheus import render_prometheus
from spark_jobs.report.thresholds import ExceededThreshold, Threshold, in_order, reached
from spark_jobs.report.words import shown
from spark_jobs.run import Run

# Seconds between two checks whether to interrupt Spark, and between two interruptions.
_SECONDS = 0.5


def follow_until_stopped(
    run: Run, checked: Sequence[Threshold], prometheus: Path | None, *, as_json: bool
) -> bool:
    """Follow a component and print what happens."""
    printed = _Printed(run, checked, prometheus, as_json)
    with Stop(ends_process=True) as stop:
        follower = follow(run, printed, stop.wait, lambda spark: _interrupted(stop, spark))
        return printed.ended(follower)


@contextmanager
def _interrupted(stop: Stop, spark: SparkSession) -> Iterator[None]:
    """Interrupt Spark's jobs once the process has to stop."""
    stop.listen()  # Spark replaces the handler of SIGINT when it starts

    def interrupt(is_over: threading.Event) -> None:
        while not is_over.is_set():
            if stop.wait(_SECONDS):
                with contextlib.suppress(Exception):  # Spark may have ended too
                    spark.sparkContext.cancelAllJobs()
                is_over.wait(_SECONDS)

    with in_background(interrupt):
        yield


class _Printed:
    """Prints events on standard output, and failures on standard error."""

    def __init__(
        self, run: Run, checked: Sequence[Threshold], prometheus: Path | None, as_json: bool
    ) -> None:
        self._run = run
        self._checked = checked
        self._prometheus = prometheus
        self._as_json = as_json
        self._console = Console(soft_wrap=True)

    def began(self, follower: Follower) -> None:
        grace = self._run.grace.total_seconds()
        if self._as_json:
            self._object(
                event="following",
                component=self._run.component.name,
                categories=follower.categories,
                graceSeconds=grace,
            )
        else:
            categories = ", ".join(map(shown, follower.categories))
            self._line(
                f"Following {categories}; a violation is reported once it has "
                f"persisted for {grace:g} seconds."
            )

    def happened(self, event: ViolationEvent) -> None:
        if self._as_json:
            click.echo(json.dumps(as_json_line(event)))
        else:
            self._line(as_line(event))

    def looked(self, follower: Follower) -> None:
        if follower.report is None or self._prometheus is None:
            return
        with outputs() as staged:
            place = staged.file(self._prometheus)
            place.write_text(render_prometheus(follower.report, self._reached(follower)))

    def waits(self, why: str) -> None:
        click.echo(f"Waiting to continue: {shown(' '.join(why.split()))}", err=True)

    def ended(self, follower: Follower) -> bool:
        """Print the sums; return whether the violations that stand exceed no failing threshold."""
        exceeded = self._reached(follower)
        if self._as_json:
            self._object(
                event="ended",
                reported=follower.reported,
                mended=follower.mended,
                standing=follower.standing,
                inOrder=in_order(exceeded),
            )
        else:
            for threshold in exceeded:
                self._line(f"{threshold.heading}: {threshold}")
            self._line(ended(follower.reported, follower.mended, follower.standing))
        return in_order(exceeded)

    def _reached(self, follower: Follower) -> tuple[ExceededThreshold, ...]:
        """Return the thresholds that the reported violations that stand exceed."""
        if follower.report is None:
            return ()
        standing = {name: follower.standing.get(name, 0) for name in VIOLATIONS}
        return reached(follower.report, self._checked, standing)

    def _line(self, line: str | Text) -> None:
        self._console.print(Text(line) if isinstance(line, str) else line)

    def _object(self, **values: object) -> None:
        click.echo(json.dumps(values))
