"""Run a reconciliation, and write its reports."""

import dataclasses
import json
from datetime import datetime, timedelta
from pathlib import Path

import click
from rich.console import Console

from cli.common.errors import NOT_IN_ORDER, exit_on_sigterm
from cli.common.extras import require_extras
from cli.common.lazy import load
from cli.common.tables import console
from cli.spark.execution.prepare import prepare_later
from cli.spark.execution.progress import progress
from reservation.app_path import load_component, refuse_read_model
from spark_jobs import reconcile as reconciling
from spark_jobs.findings.accepted import run_name
from spark_jobs.report import thresholds
from spark_jobs.report.as_json import as_json as to_json
from spark_jobs.report.output import outputs
from spark_jobs.report.terminal import print_report
from spark_jobs.run import Run


def reconcile(
    context: click.Context,
    app: str,
    app_dir: str,
    database_url: str,
    master: str,
    remote: str | None,
    conf: tuple[str, ...],
    as_json: bool,
    details: bool,
    values: bool,
    html: Path | None,
    junit: Path | None,
    prometheus: Path | None,
    findings: Path | None,
    fail_on: str,
    warn: str | None,
    since: int | datetime | None,
    state: Path | None,
    follow: bool,
    archive: Path | None,
    grace: timedelta,
) -> None:
    """Run `reservation reconcile`; the arguments are its options."""
    if follow:
        _refuse(
            "--follow runs until it is stopped, and in this process",
            details=details,
            html=html,
            junit=junit,
            findings=findings,
            archive=archive,
            remote=remote,
            since=since,
        )
    if since is not None:
        _refuse(
            "--since looks only at what is new in the store",
            state=state,
            archive=archive,
            details=details,
            html=html,
            prometheus=prometheus,
        )
    require_extras(*(["connect"] if remote else []))
    exit_on_sigterm()
    checked = thresholds.parse(fail_on)
    if warn:
        checked += thresholds.parse(warn, failing=False)
    component = load_component(app, app_dir)
    refuse_read_model(component, "compare its rows with `reservation models verify {app}`")
    run = Run(
        component,
        app,
        Path(app_dir),
        database_url,
        grace=grace,
        details=details or html is not None,
        values=values,
        state=state,
        since=since,
        archive=archive,
        master=master,
        remote=remote,
        conf=conf,
    )
    if follow:
        follow_until_stopped = load("cli.spark.execution.follow:follow_until_stopped")
        is_in_order = follow_until_stopped(run, checked, prometheus, as_json=as_json)
        prepare_later(master, remote)
        if not is_in_order:
            context.exit(NOT_IN_ORDER)
        return
    with outputs() as staged:
        if findings:
            run = dataclasses.replace(run, findings=staged.run(findings, run_name()))
        files = [
            (staged.file(place), f"spark_jobs.report.{render}")
            for place, render in (
                (html, "page.html:render_html"),
                (junit, "junit:render_junit"),
                (prometheus, "prometheus:render_prometheus"),
            )
            if place
        ]
        with progress(Console(stderr=True)) as watch:
            report = reconciling.reconcile(run, watch)
        reached = thresholds.reached(report, checked)
        for path, render in files:
            path.write_text(load(render)(report, reached))
    if as_json:
        click.echo(json.dumps(to_json(report, reached)))
    else:
        print_report(report, reached, console())
    prepare_later(master, remote)
    if not thresholds.in_order(reached):
        context.exit(NOT_IN_ORDER)


def _refuse(why: str, **others: object) -> None:
    """Refuse options that cannot be given with another one."""
    given = [f"--{name.replace('_', '-')}" for name, value in others.items() if value]
    if given:
        raise click.UsageError(f"{why}; leave out {', '.join(given)}")
