"""``reservation status``: the position and the lag of each consumer, and who holds what."""

import json
import sys
import time
from datetime import datetime, timedelta

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cli.common.durations import DurationType, in_two_units
from cli.common.errors import debug_option, exit_on_sigterm
from cli.common.options import database_option, json_option, optional_app_options
from cli.common.tables import console
from cli.consumers import status_json
from consumers.group.inspection.breakers import BreakerStatus
from consumers.group.inspection.status import Lag, PartitionStatus, Status, read_status
from consumers.group.inspection.stored_positions import Holder
from consumers.group.inspection.unread import UnreadCategory
from consumers.group.inspection.waits import pauses_of, total, why
from consumers.runtime.backoff import Backoff
from reservation.app_path import load_component
from reservation.component import Component
from reservation.errors import DatabaseUnavailableError, StoreReplacedError
from reservation.messages.message import printable
from reservation.postgres.connection import connect
from reservation.store.schema.install import check_installed


@click.command()
@optional_app_options
@database_option
@json_option
@click.option(
    "--watch",
    type=DurationType(
        at_least=timedelta(milliseconds=100), at_most=timedelta(days=1), plain_seconds=True
    ),
    is_flag=False,
    flag_value="2s",
    metavar="[DURATION]",
    help="Update the table at this interval until Ctrl-C, such as 500ms or 1m; 2s without a value. "
    "A plain number is in seconds.",
)
@debug_option
def status(
    app: str | None, app_dir: str, database_url: str, as_json: bool, watch: timedelta | None
) -> None:
    """Show the position and the lag of consumers, and which process holds what.

    Shows every consumer in the store, or those of the component APP. For each partition it prints
    the position, the last position of the category, how many messages are unread and how old the
    oldest is, which process holds the partition, and how long ago it committed. All of it is one
    snapshot. An auditor's rights are enough.

    Then it says why messages are not handled: how many are dead, wait for a retry, for a rate
    (limited), for a breaker or for a pause, run, or are parked behind others of their entity; what
    is paused, by whom, since when and why; and where no process reads a category.

    Then it says how many messages of the store are scheduled, when the next one is due, and what
    is overdue; the same of recurring commands. Open breakers are named, since when and why. If a
    session has held a snapshot of the database for more than ten minutes, which keeps PostgreSQL
    from removing old rows, it is named. Sessions of other roles are shown to members of
    pg_read_all_stats.

    Last, it names command categories that hold messages and in which no consumer has a position,
    because a sender may have misspelled the name. The first 2,000 categories of the store are
    searched.

    At most 100,000 messages are counted; 100,000+ means that there may be more. A position of
    another log, from before the store was cleared, restored or replaced, is reported with the
    command that repairs it.

    \b
    Examples:
      reservation status
      reservation status bank:account --watch 5
      reservation status --json | jq '.partitions[] | select(.lagSeconds > 60)'
    """
    if watch is not None and as_json:
        raise click.UsageError("--watch shows a table, and --json prints one object; leave out one")
    if watch is not None and not sys.stdout.isatty():
        raise click.UsageError("--watch needs a terminal; leave it out")
    component = None if app is None else load_component(app, app_dir)
    if watch is not None:
        _watch(database_url, component, watch.total_seconds(), app)
        return
    seen = _look(database_url, component)
    if as_json:
        click.echo(json.dumps(status_json.as_json(seen)))
    else:
        console().print(_render(seen, app=app))


def _look(database_url: str, component: Component | None) -> Status:
    with connect(database_url, autocommit=True) as connection:
        check_installed(connection)
        return read_status(connection, component)


def _watch(
    database_url: str, component: Component | None, interval: float, app: str | None
) -> None:
    """Show a table and update it until Ctrl-C, which is not a failure.

    A database that becomes unavailable is waited for.
    """
    exit_on_sigterm()
    seen = _look(database_url, component)
    backoff = Backoff()
    try:
        with Live(console=Console(), auto_refresh=False, screen=False) as live:
            problem = None
            while True:
                live.update(_render(seen, problem, app), refresh=True)
                time.sleep(interval if problem is None else max(interval, backoff.next()))
                try:
                    seen, problem = _look(database_url, component), None
                    backoff.reset()
                except DatabaseUnavailableError as error:
                    problem = str(error)
    except KeyboardInterrupt:
        return


def _render(seen: Status, problem: str | None = None, app: str | None = None) -> RenderableType:
    below = [_breaker(one) for one in seen.breakers if one.is_open]
    below += [*_scheduled(seen), *_recurring(seen), *_held(seen), *map(_unread, seen.unread)]
    below += [_unreadable(one) for one in seen.partitions if one.lag.unreadable is not None]
    if not seen.partitions and problem is None:
        return Group(Text("No consumer was ever run on this store."), *below)
    notices = [str(error) for error in _foreign(seen, app)]
    if problem is not None:
        notices.append(f"As of {_when(seen.time)}. {printable(problem)}")
    texts = (Text(notice, style="bold red") for notice in notices)
    return Group(_table(seen), *_waiting(seen), *below, *texts)


def _foreign(seen: Status, app: str | None) -> list[StoreReplacedError]:
    """Return an error for each consumer with a position of another log."""
    reached: dict[tuple[str, str], int] = {}
    for stored in (partition.stored for partition in seen.partitions if partition.stored.foreign):
        reads = printable(stored.consumer), printable(stored.category)
        reached[reads] = max(stored.position, reached.get(reads, 0))
    return [StoreReplacedError(*reads, position, app) for reads, position in reached.items()]


def _breaker(one: BreakerStatus) -> Text:
    """Return why messages of a type wait, in a line."""
    since = "" if one.since is None else f" since {_when(one.since)}"
    text = f"Breaker open: {printable(one.type)} in {printable(one.category)}{since}"
    text += f", after {printable(one.error_type or 'failures')}; "
    if one.state == "half_open":
        text += "a message tries"
    elif one.until is not None:
        text += f"a message may try from {_when(one.until)}"
    return Text(text, style="bold red")


def _scheduled(seen: Status) -> list[Text]:
    """Return what is scheduled in the store, in a line or two; nothing if nothing is."""
    schedule = seen.schedule
    lines = []
    if schedule.messages:
        due = f"; the next is due at {_when(schedule.next_at)}" if schedule.next_at else ""
        what = "message" if schedule.messages == 1 else "messages"
        lines.append(Text(f"Scheduled: {schedule.messages:,} {what} of the store{due}"))
    if schedule.overdue_since is not None:
        since = in_two_units((seen.time - schedule.overdue_since).total_seconds())
        refused = f"; the log refuses {schedule.refused:,}" if schedule.refused else ""
        refused += f" ({schedule.dead:,} dead)" if schedule.dead else ""
        text = f"Overdue: {schedule.overdue:,} of them, the oldest for {since}{refused}"
        lines.append(Text(text, style="bold red"))
    return lines


def _recurring(seen: Status) -> list[Text]:
    """Return how many series there are, in a line; nothing if there are none."""
    series = seen.series
    if not (series.declared or series.stopped):
        return []
    text = f"Recurring: {series.declared:,} series"
    if series.next_at is not None:
        text += f"; the next tick is at {_when(series.next_at)}"
    states = {"overdue": series.overdue, "failing": series.failing, "stopped": series.stopped}
    text += "".join(f"; {count:,} {state}" for state, count in states.items() if count)
    return [Text(text, style="bold red" if series.failing else "")]


def _held(seen: Status) -> list[Text]:
    """Return what holds an old snapshot, in a line; nothing if nothing does."""
    held = seen.oldest_snapshot
    if held is None:
        return []
    age = in_two_units((seen.time - held.since).total_seconds())
    application = f", application {printable(held.application)}" if held.application else ""
    name, role = printable(held.name), printable(held.role)
    way_out = (
        f"""ROLLBACK PREPARED '{name.replace("'", "''")}'"""
        if held.kind == "prepared transaction"
        else f"SELECT pg_terminate_backend({name})"
    )
    text = (
        f"Old snapshot: the {held.kind} {name} (role {role}{application}) has held one for {age}, "
        f"which slows the consumers down. If it is not needed, `{way_out}` ends it."
    )
    return [Text(text, style="bold red")]


def _unread(one: UnreadCategory) -> Text:
    return Text(f"Nobody reads: {one}", style="yellow")


def _unreadable(one: PartitionStatus) -> Text:
    text = f"Unreadable: the time of the message at global position {one.lag.unreadable}"
    return Text(f"{text} in {printable(one.stored.category)}", style="bold red")


def _table(seen: Status) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading, justify in (
        ("consumer", "left"),
        ("category", "left"),
        ("partition", "right"),
        ("position", "right"),
        ("head", "right"),
        ("lag", "right"),
        ("oldest", "right"),
        ("last commit", "right"),
        ("holder", "left"),
    ):
        table.add_column(heading, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for partition in seen.partitions:
        table.add_row(
            Text(printable(partition.stored.consumer)),
            Text(printable(partition.stored.category)),
            Text(f"{partition.stored.partition} of {partition.stored.partitions}"),
            Text(f"{partition.stored.position:,}"),
            Text(f"{partition.head:,}"),
            Text("not of this store", style="bold red")
            if partition.stored.foreign
            else _lag(partition.lag),
            Text("" if partition.lag.seconds is None else in_two_units(partition.lag.seconds)),
            Text(_ago(partition.stored.updated_at, seen.time)),
            _holder(partition.stored.holder),
        )
    return table


def _lag(lag: Lag) -> Text:
    text = f"{lag.messages:,}{'+' if lag.at_least else ''}"
    return Text(text, style="yellow" if lag.messages or lag.at_least else "green")


def _holder(holder: Holder | None) -> Text:
    if holder is None:
        return Text("nobody", style="yellow")
    process = printable(holder.process or "its process")
    return Text(f"{process}, gone", style="bold red") if holder.gone else Text(process)


def _waiting(seen: Status) -> list[RenderableType]:
    """Return why messages are not handled: a line for each consumer and category."""
    by_reads: dict[tuple[str, str], list[PartitionStatus]] = {}
    for one in seen.partitions:
        by_reads.setdefault((one.stored.consumer, one.stored.category), []).append(one)
    table = Table(box=None, pad_edge=False, show_header=False)
    for (consumer, category), partitions in by_reads.items():
        letters = total([one.letters for one in partitions])
        pauses = pauses_of(seen.pauses, consumer, category)
        said = why(
            letters,
            pauses,
            lambda moment: f"since {_when(moment)}",
            unread=any(one.lag.messages or one.lag.at_least for one in partitions),
            without_holder=any(_is_unheld(one) for one in partitions),
        )
        times = [one.next_attempt_at for one in partitions if one.next_attempt_at is not None]
        if times:
            said.append(f"next attempt {_when(min(times))}")
        if said:
            style = "bold red" if letters.dead or said[-1] == "no consumer" else "yellow"
            reads = f"{printable(category)} by {printable(consumer)}"
            table.add_row(Text(reads), Text("; ".join(said), style=style))
    return [Text("\nNot handled", style="bold"), table, Text()] if table.row_count else []


def _is_unheld(one: PartitionStatus) -> bool:
    return one.stored.holder is None or one.stored.holder.gone


def _ago(moment: datetime | None, now: datetime) -> str:
    return "never" if moment is None else f"{in_two_units((now - moment).total_seconds())} ago"


def _when(moment: datetime) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")
