"""Telling a story on a terminal, or as JSON."""

import json
import shlex
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import click

from cli.common.errors import NotInOrder
from cli.story import as_json as output
from consumers.story.content.difference import visible
from consumers.story.content.entries import Entry, Kind, Meaning, Story
from consumers.story.story import tell
from reservation.app_path import load_component
from reservation.messages.message import printable
from reservation.postgres.connection import connect
from reservation.store.schema.install import check_installed

# Characters of a line that are printed.
LONGEST = 4_000


def tell_story(
    text: str,
    apps: Sequence[str],
    app_dir: str,
    meaning: str | None,
    after: int | None,
    with_data: bool,
    database_url: str,
    as_json: bool,
) -> None:
    """Run the command; the arguments are its options."""
    components = [load_component(app, app_dir) for app in apps]
    taken_for = None if meaning is None else Meaning(meaning)
    with connect(database_url, autocommit=True) as connection:
        check_installed(connection)
        story = tell(connection, text, meaning=taken_for, after=after, components=components)
    if as_json:
        click.echo(json.dumps(output.as_json(story, with_data)))
    else:
        _print(story, with_data)
    if not story.entries and not story.alternatives:
        raise NotInOrder(story.notes[0] if story.notes else "There is nothing to tell")


def _print(story: Story, with_data: bool) -> None:
    if story.taken_for:
        click.echo(f"Taken for {visible(story.taken_for).text}.")
    if story.outcome:
        click.echo(f"{story.outcome.text}.")
    if story.entries:
        for line in _lines(story.entries, with_data):
            click.echo(line)
        for note in story.notes:
            click.echo(note)
    elif story.alternatives:
        click.echo(story.notes[0] if story.notes else "This may mean several things:")
    if story.next_after is not None:
        click.echo(f"There may be more: go on with --after {story.next_after}.")
    also = "It may also mean " if story.entries else ""
    for one in story.alternatives:
        meant = f"--as {one.meaning} {shlex.quote(printable(one.text))}"
        click.echo(f"{also}{one.described}: reservation story {meant}")


def _lines(entries: Sequence[Entry], with_data: bool) -> Iterator[str]:
    """Give a line for each entry, and under it what else there is to know."""
    for entry in entries:
        indent = "  " * entry.depth
        type_, place = (visible(text).text for text in _named(entry))
        position = "" if entry.global_position is None else f"({entry.global_position})"
        asked = "*" if entry.is_asked else ""
        words = [click.style(entry.kind.value, bold=True) + asked, type_, place, position]
        yield f"{_moment(entry.time)}  {indent}{' '.join(word for word in words if word)}"
        for told in _told(entry, with_data):
            yield f"{' ' * 25}{indent}  {visible(told, LONGEST).text}"


def _named(entry: Entry) -> tuple[str, str]:
    """Return the type of what an entry is about, and where it is."""
    if entry.scheduled is not None:
        return entry.scheduled.type, entry.scheduled.stream_name
    if entry.letter is not None:
        return entry.letter.type, entry.letter.consumer
    if entry.passed is not None:
        return "" if entry.message is None else entry.message.type, entry.passed.consumer
    if entry.message is not None:
        return entry.message.type, entry.message.stream_name
    return "", ""


def _told(entry: Entry, with_data: bool) -> list[str]:
    """Return what else there is to know of an entry, a line for each."""
    lines: list[str] = []
    if entry.letter is not None:
        waiting = entry.letter.next_attempt_at
        state = entry.letter.state if waiting is None else f"waiting until {_moment(waiting)}"
        lines.append(f"{state}, {entry.letter.reason}, attempts: {entry.letter.attempts}")
        lines += [entry.letter.error] if entry.letter.error else []
        for one in entry.decisions:
            who = one.on_behalf_of or one.decided_by
            lines.append(f"{one.decision} by {who}" + (f": {one.reason}" if one.reason else ""))
    elif entry.scheduled is not None:
        cancelled = entry.scheduled.cancelled_at
        due = f"due {_moment(entry.scheduled.due_at)}"
        lines.append(due if cancelled is None else f"cancelled {_moment(cancelled)}")
    elif entry.passed is not None:
        lines.append(entry.passed.reason)
    elif entry.request is not None:
        status = entry.request.status
        lines.append("not answered yet" if status is None else f"answered with {status}")
    if entry.reason:
        lines.append(entry.reason)
    for difference in entry.differences:
        line = f"{difference.path or 'the whole'} {difference.change}"
        if with_data:
            before, after = (
                "nothing" if one is None else one.text
                for one in (difference.before, difference.after)
            )
            line += f": {before} -> {after}"
        lines.append(f"{line} (which is allowed)" if difference.may_differ else line)
    if entry.trace:
        lines.append(f"trace {entry.trace}")
    is_message = entry.message is not None and entry.kind not in (Kind.LETTER, Kind.PASS)
    if with_data and is_message and entry.message is not None and entry.message.data:
        lines.append(entry.message.data)
    return lines


def _moment(moment: datetime) -> str:
    utc = moment.astimezone(UTC)
    return f"{utc:%Y-%m-%d %H:%M:%S}.{utc.microsecond // 1000:03}"
