"""The events of a follower as lines: for people, or each a JSON object."""

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from spark_jobs.follow.persistence import ViolationEvent
from spark_jobs.report.as_json import as_object
from spark_jobs.report.words import at, key, shown, type_


def as_line(event: ViolationEvent) -> Text:
    """Return an event as a line: when, what, key, stream, type, global position and id."""
    found = event.violation
    what = f"{_name(event)}: {found.finding}" if event.is_mended else found.finding
    rest = (key(found), found.stream_name, type_(found), found.global_position, found.message_id)
    return Text.assemble(
        at(event.time),
        "  ",
        (f"{what:<13}", "green" if event.is_mended else "bold red"),
        *(f"  {shown(cell)}" for cell in rest),
    )


def as_json_line(event: ViolationEvent) -> dict[str, Any]:
    """Return an event as an object."""
    return {
        "event": _name(event),
        "time": event.time.isoformat(),
        "since": event.since.isoformat(),
        "violation": as_object(event.violation),
    }


def _name(event: ViolationEvent) -> str:
    if event.is_accepted:
        return "accepted"
    return "mended" if event.is_mended else "reported"


def ended(reported: int, mended: int, standing: Mapping[str, int]) -> str:
    """Return the sums, in a sentence."""
    stand = ", ".join(f"{count:,} {name}" for name, count in standing.items())
    return f"{reported:,} reported, {mended:,} mended, still open: {stand or 'none'}."
