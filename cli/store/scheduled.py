"""``reservation scheduled``: show and cancel what is to be written later."""

import json
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

import click
from rich.table import Table
from rich.text import Text

from cli.common.errors import CommandGroup, NotInOrder, debug_option
from cli.common.options import database_option, json_option
from cli.common.tables import console
from reservation.inspection.schedule import (
    ScheduleEntry,
    SeriesEntry,
    list_scheduled,
    list_series,
)
from reservation.messages.message import printable
from reservation.messages.stream_name import command_category
from reservation.postgres.connection import connect
from reservation.store.client import MessageStore
from reservation.store.schema.install import check_installed
from reservation.store.writing.scheduling import Cancellation, retry_scheduled


@click.group(cls=CommandGroup)
@debug_option
def scheduled() -> None:
    """Show series and messages that are to be written later, cancel these, or retry dead ones.

    \b
    scheduled  the message is not due yet
    overdue    it is due; any consumer that runs on the store writes it
    refused    it is due, and the log refuses it; it is tried again every minute at least
    dead       the log refuses it, and it is not tried again
    cancelled  it will not be written

    \b
    Of a series of recurring commands:
    scheduled  its next tick is to come
    overdue    a tick is due; any consumer of its component sends it
    failing    its function fails for a tick; it is called again every minute at least
    stopped    the newest process of its component does not declare it

    \b
    Example:
      reservation scheduled list
    """


@scheduled.command("list")
@click.option("--category", help="Only messages that are written to this category.")
@click.option("--all", "cancelled", is_flag=True, help="Also cancelled ones.")
@click.option(
    "--limit", type=click.IntRange(1), default=100, show_default=True, help="How many to show."
)
@database_option
@json_option
@debug_option
def list_command(
    category: str | None, cancelled: bool, limit: int, database_url: str, as_json: bool
) -> None:
    """List the series of recurring commands, then scheduled messages, the first due first.

    The data of messages is not shown. Written messages are in the log and no longer listed.
    Ticks are in the time zone of their series, in JSON in UTC.

    \b
    Examples:
      reservation scheduled list --category order:command
      reservation scheduled list --json | jq '.scheduled[] | select(.state == "refused")'
      reservation scheduled list --json | jq '.series[] | select(.state == "failing")'
    """
    with connect(database_url, autocommit=True) as connection:
        check_installed(connection)
        now, messages = list_scheduled(connection, limit, category=category, cancelled=cancelled)
        all_series = list_series(connection)
    series = [one for one in all_series if category in (None, command_category(one.component))]
    if as_json:
        scheduled = [_as_json(one, now) for one in messages]
        shown = [_series_as_json(one, now) for one in series]
        click.echo(json.dumps({"scheduled": scheduled, "series": shown}))
        return
    if series:
        console().print(_series_table(series, now))
        for entry in series:
            if entry.error:
                click.echo(f"{printable(entry.name)}: {printable(entry.error)}")
    if messages and series:
        click.echo()
    if not (messages or series):
        click.echo("Nothing is scheduled.")
    elif messages:
        console().print(_table(messages, now))
        for one in messages:
            if one.error:
                click.echo(f"{one.id}: {printable(one.error)}")
        if len(messages) == limit:
            click.echo(f"There may be more than these {limit:,}; see --limit.", err=True)


@scheduled.command("cancel")
@click.argument("ids", metavar="ID...", nargs=-1, required=True, type=click.UUID)
@database_option
@json_option
@debug_option
def cancel_command(ids: tuple[uuid.UUID, ...], database_url: str, as_json: bool) -> None:
    """Cancel scheduled messages by their ids.

    Each is cancelled unless it was written. A cancelled message is not scheduled again by a repeat
    of the handler that scheduled it. The exit status is 1 if one was written or is unknown. Needs
    the rights of an operator, or of a sender that may write the message.

    \b
    Example:
      reservation scheduled cancel 0190163d-8694-739b-aea5-966c26f8ad91
    """
    with connect(database_url, autocommit=True) as connection:
        store = MessageStore(connection)
        done = {message_id: store.cancel(message_id) for message_id in ids}
    if as_json:
        changed = [{"id": str(one), "outcome": outcome.value} for one, outcome in done.items()]
        click.echo(json.dumps({"changed": changed}))
    else:
        for one, outcome in done.items():
            click.echo(f"{one}: {outcome.value}")
    missed = [str(one) for one, outcome in done.items() if outcome is not Cancellation.CANCELLED]
    if missed:
        raise NotInOrder(f"Not cancelled: {', '.join(missed)}")


@scheduled.command("retry")
@click.argument("ids", metavar="ID...", nargs=-1, required=True, type=click.UUID)
@database_option
@json_option
@debug_option
def retry_command(ids: tuple[uuid.UUID, ...], database_url: str, as_json: bool) -> None:
    """Have dead scheduled messages tried again, by their ids.

    Any consumer that runs on the store writes them. The exit status is 1 if one is not dead. Needs
    the rights of an operator.

    \b
    Example:
      reservation scheduled retry 0190163d-8694-739b-aea5-966c26f8ad91
    """
    with connect(database_url, autocommit=True) as connection:
        check_installed(connection)
        retried = retry_scheduled(connection, ids)
    done = {one: "retried" if one in retried else "unknown" for one in ids}
    if as_json:
        changed = [{"id": str(one), "outcome": outcome} for one, outcome in done.items()]
        click.echo(json.dumps({"changed": changed}))
    else:
        for one, outcome in done.items():
            click.echo(f"{one}: {outcome}")
    missed = [str(one) for one in done if one not in retried]
    if missed:
        raise NotInOrder(f"Not dead: {', '.join(missed)}")


def _as_json(message: ScheduleEntry, now: datetime) -> dict[str, object]:
    attempt_at, cancelled_at = message.attempt_at, message.cancelled_at
    return {
        "id": str(message.id),
        "streamName": message.stream_name,
        "type": message.type,
        "state": message.state(now),
        "dueAt": message.due_at.isoformat(),
        "scheduledAt": message.scheduled_at.isoformat(),
        "cancelledAt": cancelled_at and cancelled_at.isoformat(),
        "attempts": message.attempts,
        "attemptAt": attempt_at and attempt_at.isoformat(),
        "error": message.error,
    }


def _table(messages: Sequence[ScheduleEntry], now: datetime) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("due", "state", "type", "stream", "id", "attempts"):
        table.add_column(title, overflow="fold", min_width=36 if title == "id" else None)
    for message in messages:
        cells = [
            f"{message.due_at.astimezone():%Y-%m-%d %H:%M:%S}",
            message.state(now),
            message.type,
            message.stream_name,
            str(message.id),
            str(message.attempts or ""),
        ]
        table.add_row(*[Text(printable(cell)) for cell in cells])
    return table


def _series_as_json(series: SeriesEntry, now: datetime) -> dict[str, object]:
    next_tick, last_tick, attempt_at = series.next_tick(), series.last_tick, series.attempt_at
    return {
        "component": series.component,
        "name": series.name,
        "expression": series.expression,
        "zone": series.zone,
        "missed": series.missed,
        "state": series.state(now),
        "nextTick": next_tick and _utc(next_tick),
        "lastTick": last_tick and _utc(last_tick),
        "attempts": series.attempts,
        "attemptAt": attempt_at and _utc(attempt_at),
        "error": series.error,
        "givenUp": series.given_up,
        "stoppedAt": series.stopped_at and _utc(series.stopped_at),
    }


def _utc(time: datetime) -> str:
    return time.astimezone(UTC).isoformat()


def _series_table(series: Sequence[SeriesEntry], now: datetime) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("next", "state", "last", "component", "series", "expression", "zone", "given up"):
        table.add_column(title, overflow="fold")
    for one in series:
        cells = [
            _tick(one, one.next_tick()),
            one.state(now),
            _tick(one, one.last_tick),
            one.component,
            one.name,
            one.expression,
            one.zone,
            str(one.given_up or ""),
        ]
        table.add_row(*[Text(printable(cell)) for cell in cells])
    return table


def _tick(series: SeriesEntry, time: datetime | None) -> str:
    return "" if time is None else f"{series.local(time):%Y-%m-%d %H:%M %z}"
