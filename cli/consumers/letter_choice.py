"""Choosing the dead letters that a decision is about: by their positions, or by a filter."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from typing import Any, TypeVar

import click
from psycopg import Connection

from cli.common.durations import DurationType
from consumers.dead_letters import administration, search
from consumers.dead_letters.letter import Letter, Selection
from consumers.dead_letters.search import Extent, Filter

F = TypeVar("F", bound=Callable[..., Any])

# How many letters are named before they are changed.
_NAMED = 20


@dataclass(frozen=True, slots=True)
class LetterChoice:
    """Chosen letters.

    Attributes:
        positions: the global positions of single letters; empty for all that `wanted` picks out.
        wanted: whose, and which.
    """

    positions: tuple[int, ...]
    wanted: Filter

    @property
    def selection(self) -> Selection:
        """Whose the single letters are."""
        return Selection(self.wanted.consumer, self.wanted.category)


@dataclass(frozen=True, slots=True)
class ChosenLetters:
    """The letters that were chosen, as they are.

    Attributes:
        letters: the first of them.
        extent: how many there are, and as far as which.
    """

    letters: list[Letter]
    extent: Extent

    @property
    def lines(self) -> list[str]:
        """Their names, and how many more there are."""
        more = self.extent.count - len(self.letters)
        return [*map(str, self.letters), *([f"and {more} more"] if more else [])]


def choice_options(command: F) -> F:
    """Add the arguments and options that choose letters; the command takes them as ``choice``."""

    @wraps(command)
    def choosing(
        *arguments: Any,
        positions: tuple[int, ...],
        every: bool,
        consumer: str | None,
        category: str | None,
        entity: str | None,
        type_: str | None,
        digest: str | None,
        older_than: timedelta | None,
        **options: Any,
    ) -> Any:
        wanted = Filter(
            consumer, category, type_, entity=entity, digest=digest, older_than=older_than
        )
        filters = wanted != Filter(consumer, category)
        if positions and (filters or every):
            raise click.UsageError(
                "Give global positions, or options that select letters, not both"
            )
        if not positions and not every and wanted == Filter():
            raise click.UsageError(
                "Give global positions, an option that selects letters, such as --entity, or --all"
            )
        return command(*arguments, choice=LetterChoice(positions, wanted), **options)

    decorated: Any = choosing
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]  # what click makes of it is called by click


_OPTIONS = [
    click.argument("positions", metavar="[GLOBAL_POSITION]...", nargs=-1, type=click.IntRange(1)),
    click.option("--all", "every", is_flag=True, help="All dead letters."),
    click.option("--consumer", help="Only dead letters of this component."),
    click.option("--category", help="Only dead letters of this category."),
    click.option(
        "--entity", metavar="STREAM", help="Only dead letters of this entity, such as account-123."
    ),
    click.option("--type", "type_", help="Only dead letters of messages of this type."),
    click.option(
        "--digest", help="Only dead letters for this fault, as `list --json` and `show` name it."
    ),
    click.option(
        "--older-than",
        type=DurationType(),
        metavar="DURATION",
        help="Only those that have been dead letters for longer than this, such as 36h or 90d.",
    ),
]


def letters_of(connection: Connection[Any], choice: LetterChoice, wanted: Filter) -> ChosenLetters:
    """Return the letters that were chosen."""
    if choice.positions:
        letters = administration.find_each(connection, choice.selection, choice.positions)
        return ChosenLetters(letters, Extent(len(letters), 0))
    extent = search.extent(connection, wanted)
    return ChosenLetters(search.page(connection, wanted, _NAMED), extent)
