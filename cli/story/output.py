"""Telling a story on a terminal, or as JSON."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import click

from cli.common.errors import NotInOrder
from cli.consumers import letter_output
from consumers.story.story import Entry, Story, read_story
from reservation.messages.message import printable
from reservation.postgres.connection import connect
from reservation.store.schema.install import check_installed


def print_story(text: str, with_data: bool, database_url: str, as_json: bool) -> None:
    """Run the command; the arguments are its options."""
    with connect(database_url, autocommit=True) as connection:
        check_installed(connection)
        story = read_story(connection, text)
    if as_json:
        click.echo(json.dumps(story_as_json(story, with_data)))
    elif story.entries:
        for line in _lines(story, with_data):
            click.echo(line)
    if not story.entries:
        raise NotInOrder(story.notes[0])


def story_as_json(story: Story, with_data: bool) -> dict[str, Any]:
    """Return a story as JSON; the data of messages only on request."""
    entries = [_entry_as_json(entry, with_data) for entry in story.entries]
    return {"text": story.text, "entries": entries, "notes": list(story.notes)}


def _entry_as_json(entry: Entry, with_data: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "kind": entry.kind,
        "time": entry.time and entry.time.isoformat(),
        "depth": entry.depth,
    }
    message = entry.message if entry.is_message else None
    if message is not None:
        cause = message.metadata
        shown |= {
            "isAsked": entry.is_asked,
            "outcome": entry.outcome and entry.outcome.text,
            "id": message.id,
            "streamName": message.stream_name,
            "type": message.type,
            "position": message.position,
            "globalPosition": message.global_position,
            "cause": cause.causation_message_global_position,
            "causeStreamName": cause.causation_message_stream_name,
            "traceId": entry.trace,
        }
        if with_data:
            shown["data"] = None if message.data is None else json.loads(message.data)
    if entry.consumer is not None:
        shown["consumer"] = entry.consumer
    if message is not None or entry.consumer is not None:
        shown["reason"] = entry.reason
    if entry.letter is not None:
        shown["letter"] = letter_output.as_json(entry.letter)
        shown["decisions"] = [letter_output.decision_as_json(one) for one in entry.decisions]
    if (scheduled := entry.scheduled) is not None:
        shown["scheduled"] = {
            "id": str(scheduled.id),
            "streamName": scheduled.stream_name,
            "type": scheduled.type,
            "dueAt": scheduled.due_at.isoformat(),
            "cancelledAt": scheduled.cancelled_at and scheduled.cancelled_at.isoformat(),
            "error": scheduled.error,
        }
    return shown


def _lines(story: Story, with_data: bool) -> Iterator[str]:
    """Give a line for each entry, and under it what else there is to know."""
    for entry in story.entries:
        indent = "  " * entry.depth
        kind = click.style(entry.kind.value, bold=True) + ("*" if entry.is_asked else "")
        time = "no time" if entry.time is None else _moment(entry.time)
        yield f"{time:23}  {indent}{kind} {printable(_named(entry))}"
        for detail in _details(entry):
            yield f"{' ' * 25}{indent}  {printable(detail)}"
        if with_data and entry.is_message and entry.message is not None and entry.message.data:
            yield f"{' ' * 25}{indent}  {_visible(entry.message.data)}"
    yield from story.notes


def _named(entry: Entry) -> str:
    """Return what an entry is about, and where that is."""
    if entry.scheduled is not None:
        return f"{entry.scheduled.type} {entry.scheduled.stream_name}"
    if entry.letter is not None:
        return f"{entry.letter.type} {entry.letter.consumer} ({entry.letter.global_position})"
    if entry.message is None or entry.consumer is not None:
        return entry.consumer or ""
    return f"{entry.message.type} {entry.message.stream_name} ({entry.message.global_position})"


def _details(entry: Entry) -> Iterator[str]:
    if entry.outcome is not None:
        yield entry.outcome.text
    if (letter := entry.letter) is not None:
        waiting = letter.next_attempt_at
        state = letter.state if waiting is None else f"waiting until {_moment(waiting)}"
        yield f"{state}, {letter.reason}, attempts: {letter.attempts}"
        if letter.error:
            yield letter.error
        for one in entry.decisions:
            who = one.on_behalf_of or one.decided_by
            yield f"{one.decision} by {who}" + (f": {one.reason}" if one.reason else "")
    if (scheduled := entry.scheduled) is not None:
        cancelled = scheduled.cancelled_at
        due = f"due {_moment(scheduled.due_at)}"
        yield due if cancelled is None else f"cancelled {_moment(cancelled)}"
    if entry.reason:
        yield entry.reason
    if entry.trace:
        yield f"trace {entry.trace}"


def _visible(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _moment(moment: datetime) -> str:
    utc = moment.astimezone(UTC)
    return f"{utc:%Y-%m-%d %H:%M:%S}.{utc.microsecond // 1000:03}"
