"""Show planned changes of positions, ask for confirmation, and apply them."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
from psycopg import Connection

from cli.common.confirming import confirm
from consumers.group.administration import GroupChange, apply_changes
from consumers.group.inspection.stored_positions import categories
from consumers.group.memory import forget
from consumers.handling.rereading import Rereading
from reservation.component import Component
from reservation.messages.message import printable


@dataclass(frozen=True, slots=True)
class Removal:
    """The removal of what a component's consumers remember.

    Attributes:
        component: whose consumers.
        remembered: how many records there are, by kind.
    """

    component: Component
    remembered: Mapping[str, int]

    @property
    def summary(self) -> str:
        """The removal, in words."""
        return f"forgets {counted(self.remembered)}"


def counted(remembered: Mapping[str, int]) -> str:
    """Return the counts of what is remembered, as a text."""
    return ", ".join(f"{count:,} {kind}" for kind, count in remembered.items()) or "nothing"


def chosen(component: Component, category: str | None) -> list[str]:
    """Return the given category, or all that a component's consumers read."""
    if category is None:
        return categories(component)
    check_category(component, category)
    return [category]


def check_category(component: Component, category: str) -> None:
    """Refuse a category that a component's consumers do not read."""
    if category not in categories(component):
        raise click.UsageError(
            f"The component {component.name} does not read {category!r}; it reads "
            f"{', '.join(categories(component))}"
        )


def carry_out(
    connection: Connection[Any],
    changes: Sequence[GroupChange],
    question: str | None,
    *,
    as_json: bool,
    dry_run: bool = False,
    forgetting: Removal | None = None,
    rereading: Mapping[str, Rereading] | None = None,
    also: Callable[[Connection[Any]], None] | None = None,
    again: bool = False,
) -> None:
    """Show changes, apply them once they are confirmed, and print the result."""
    seen = {} if rereading is None else rereading
    due = [] if dry_run else [change for change in changes if change.changes or forgetting or again]
    forgotten = [] if forgetting is None else [f"{forgetting.component.name}: {forgetting.summary}"]
    if due and question is not None:
        _ask(due, forgotten, question, seen, again)

    def remove(locked: Connection[Any]) -> None:
        if forgetting is not None:
            forget(locked, forgetting.component)
        if also is not None:
            also(locked)

    apply_changes(connection, due, remove)
    if as_json:
        shown: dict[str, object] = {
            "changes": [
                _as_json(change, change in due, seen.get(change.group.category))
                for change in changes
            ]
        }
        if forgetting is not None:
            shown["forgotten"] = dict(forgetting.remembered)
        click.echo(json.dumps(shown))
        return
    for change in changes:
        click.echo("\n".join(_sentences(change, seen, again)))
    for line in forgotten:
        click.echo(line)
    if dry_run:
        click.echo("Nothing is changed.", err=True)


def _ask(
    changes: Sequence[GroupChange],
    forgotten: Sequence[str],
    question: str,
    rereading: Mapping[str, Rereading],
    again: bool,
) -> None:
    lines = [
        *(line for change in changes for line in _sentences(change, rereading, again)),
        *forgotten,
    ]
    over = sum(change.skipped for change in changes)
    if over:
        more = "at least " if any(change.at_least for change in changes) else ""
        question = f"{question}, and pass {more}{_messages(over)} over"
    confirm(lines, question)


def _sentences(change: GroupChange, rereading: Mapping[str, Rereading], again: bool) -> list[str]:
    group = change.group
    name = f"{printable(group.consumer)} in {printable(group.category)}"
    if not change.changes:
        return [f"{name}: stays at {_positions(group.positions)}"]
    lines = [f"{name}: from {_positions(group.positions)} to {_positions(change.after)}"]
    more = "at least " if change.at_least else ""
    if change.skipped:
        lines.append(f"  {more}{_messages(change.skipped)} passed over")
    if change.redelivered:
        seen = rereading.get(group.category, Rereading())
        lines.append(f"  {more}{_messages(change.redelivered)} will be read again")
        lines += [f"  {line}" for line in _reread(seen, again)]
    if change.former_positions is not None:
        lines.append("  messages handled beyond that are kept, and not read again")
    return lines


def _reread(seen: Rereading, again: bool) -> Iterator[str]:
    """Give what becomes of the messages that are read again."""
    more = "at least " if seen.at_least else ""
    if seen.recorded and again:
        yield f"{more}{seen.recorded:,} of them are recorded as handled and will be handled again"
    elif seen.recorded:
        yield f"{more}{seen.recorded:,} of them are recorded as handled and will be duplicates"
    if seen.in_log:
        took = "of them took effect, as the log shows, and will be duplicates"
        yield f"{more}{seen.in_log:,} {took}"


def _messages(count: int) -> str:
    return f"{count:,} message{'' if count == 1 else 's'}"


def _positions(positions: Sequence[int]) -> str:
    """Return the positions of a group's partitions, as one number if they are all the same."""
    many = f" in {len(positions)} partitions" if len(positions) > 1 else ""
    different = sorted(set(positions))
    if len(different) == 1:
        return f"{different[0]:,}{many}"
    return f"{different[0]:,} to {different[-1]:,}{many}"


def _as_json(change: GroupChange, applied: bool, seen: Rereading | None) -> dict[str, object]:
    return {
        "consumer": change.group.consumer,
        "category": change.group.category,
        "before": list(change.group.positions),
        "after": list(change.after),
        "formerPositions": None
        if change.former_positions is None
        else list(change.former_positions),
        "passedOver": change.skipped,
        "redelivered": change.redelivered,
        "atLeast": change.at_least,
        "recorded": 0 if seen is None else seen.recorded,
        "inLog": 0 if seen is None else seen.in_log,
        "applied": applied,
    }
