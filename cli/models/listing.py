"""The versions of read models in a table, or as JSON."""

from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cli.common.durations import in_two_units
from consumers.read_models.progress import VersionStatus


def table(found: list[VersionStatus], *, with_bars: bool) -> RenderableType:
    """Return a table with a row for each version, on a terminal with a bar."""
    made = Table()
    for heading, justify in (
        ("read model", "left"),
        ("version", "right"),
        ("views", "left"),
        ("progress", "left"),
        ("lag", "right"),
        ("a second", "right"),
        ("time left", "right"),
        ("dead letters", "right"),
    ):
        made.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for one in found:
        made.add_row(
            one.made.model,
            str(one.made.version),
            Text("shown", style="green") if one.made.is_shown else "",
            _progress(one, with_bars=with_bars),
            _lag(one),
            "" if one.rate is None else f"{one.rate:,.0f}",
            _left(one),
            Text(f"{one.open_letters:,}", style="bold red") if one.open_letters else "none",
        )
    return made


def as_json(found: list[VersionStatus]) -> dict[str, object]:
    """Return the same as an object."""
    return {
        "versions": [
            {
                "model": one.made.model,
                "version": one.made.version,
                "schema": one.made.schema,
                "shown": one.made.is_shown,
                "progress": round(one.share, 4),
                "lagMessages": one.lag,
                "lagAtLeast": one.at_least,
                "messagesPerSecond": one.rate,
                "secondsLeft": one.left,
                "openLetters": one.open_letters,
                "paused": one.is_paused,
                "positions": {
                    category: min(
                        each.stored.position
                        for each in one.partitions
                        if each.stored.category == category
                    )
                    for category in sorted({each.stored.category for each in one.partitions})
                },
            }
            for one in found
        ]
    }


def _progress(one: VersionStatus, *, with_bars: bool) -> RenderableType:
    percent = f"{int(one.share * 1000) / 10:.1f} %"
    if not with_bars:
        return percent
    both = Table.grid(padding=(0, 1))
    both.add_row(ProgressBar(total=1.0, completed=one.share, width=20), percent)
    return both


def _lag(one: VersionStatus) -> str:
    if len(one.never_run) == len(one.lags):
        return "never run"
    return f"{one.lag:,}{'+' if one.at_least else ''}"


def _left(one: VersionStatus) -> str:
    if one.is_paused:
        return "paused"
    if one.left is not None:
        return in_two_units(one.left)
    return "does not move" if one.rate is not None else ""
