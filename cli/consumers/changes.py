"""Show planned changes of positions, ask for confirmation, and apply them."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
from psycopg import Connection

from cli.common.errors import CommandError
from consumers.group.administration import GroupChange, apply_changes
from consumers.group.inspection.stored_positions import categories
from consumers.group.memory import forget
from reservation.component import Component
from reservation.messages.message import printable


@dataclass(frozen=True, slots=True)
class Removal:
    """What is removed of what a component's consumers remember.

    Attributes:
        component: whose consumers.
        remembered: how many records there are, by kind.
    """

    component: Component
    remembered: Mapping[str, int]

    @property
    def summary(self) -> str:
        """What is removed, in words."""
        return f"forgets {counted(self.remembered)}"


def counted(remembered: Mapping[str, int]) -> str:
    """Return the counts of what is remembered, as a text."""
    return ", ".join(f"{count:,} {kind}" for kind, count in remembered.items()) or "nothing"


yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


def chosen(component: Component, category: str | None) -> list[str]:
    """Return the given category, or all that a component's consumers read.

    Raises:
        UsageError: the component's consumers do not read the category.
    """
    if category is None:
        return categories(component)
    check_category(component, category)
    return [category]


def check_category(component: Component, category: str) -> None:
    """Refuse a category that a component's consumers do not read.

    Raises:
        UsageError: the component's consumers do not read the category.
    """
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
) -> None:
    """Show changes, apply them once they are confirmed, and print the result.

    Args:
        connection: not in a transaction.
        changes: the planned changes; those that change nothing are only shown.
        question: the question to confirm; None to apply the changes without asking.
        as_json: whether to print one JSON object instead of lines.
        dry_run: whether to show the changes only.
        forgetting: what to remove in the same transaction; None for nothing.

    Raises:
        CommandError: there is no terminal to ask on.
        Abort: the answer is no.
        StoreError: something has changed in the meantime; nothing is applied.
    """
    due = [] if dry_run else [change for change in changes if change.changes or forgetting]
    forgotten = [] if forgetting is None else [f"{forgetting.component.name}: {forgetting.summary}"]
    if due and question is not None:
        _ask(due, forgotten, question)
    if forgetting is None:
        apply_changes(connection, due)
    else:
        apply_changes(connection, due, lambda locked: forget(locked, forgetting.component))
    if as_json:
        shown: dict[str, object] = {
            "changes": [_as_json(change, change in due) for change in changes]
        }
        if forgetting is not None:
            shown["forgotten"] = dict(forgetting.remembered)
        click.echo(json.dumps(shown))
        return
    for change in changes:
        click.echo("\n".join(_sentences(change)))
    for line in forgotten:
        click.echo(line)
    if dry_run:
        click.echo("Nothing is changed.", err=True)


def _ask(changes: Sequence[GroupChange], forgotten: Sequence[str], question: str) -> None:
    lines = [*(line for change in changes for line in _sentences(change)), *forgotten]
    if not sys.stdin.isatty():
        raise CommandError(
            f"{'; '.join(lines)}; there is no terminal to ask on; give --yes to confirm"
        )
    click.echo("\n".join(lines), err=True)
    over = sum(change.passed_over for change in changes)
    if over:
        more = "at least " if any(change.at_least for change in changes) else ""
        question = f"{question}, and pass {more}{_messages(over)} over"
    click.confirm(f"{question}?", abort=True, err=True)


def _sentences(change: GroupChange) -> list[str]:
    group = change.group
    name = f"{printable(group.consumer)} in {printable(group.category)}"
    if not change.changes:
        return [f"{name}: stays at {_positions(group.positions)}"]
    lines = [f"{name}: from {_positions(group.positions)} to {_positions(change.after)}"]
    more = "at least " if change.at_least else ""
    if change.passed_over:
        lines.append(f"  {more}{_messages(change.passed_over)} passed over")
    if change.redelivered:
        lines.append(f"  {more}{_messages(change.redelivered)} redelivered")
    if change.carried is not None:
        lines.append("  messages handled beyond that are kept, and not read again")
    return lines


def _messages(count: int) -> str:
    return f"{count:,} message{'' if count == 1 else 's'}"


def _positions(positions: Sequence[int]) -> str:
    """Return the positions of a group's partitions, as one number if they are all the same."""
    many = f" in {len(positions)} partitions" if len(positions) > 1 else ""
    different = sorted(set(positions))
    if len(different) == 1:
        return f"{different[0]:,}{many}"
    return f"{different[0]:,} to {different[-1]:,}{many}"


def _as_json(change: GroupChange, applied: bool) -> dict[str, object]:
    return {
        "consumer": change.group.consumer,
        "category": change.group.category,
        "before": list(change.group.positions),
        "after": list(change.after),
        "carried": None if change.carried is None else list(change.carried),
        "passedOver": change.passed_over,
        "redelivered": change.redelivered,
        "atLeast": change.at_least,
        "applied": applied,
    }
