"""Dead letters as a table, as fields and as JSON."""

import dataclasses
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rich.table import Table
from rich.text import Text

from consumers.dead_letters.history import LetterDecision
from consumers.dead_letters.letter import (
    Content,
    Correction,
    Letter,
    Raised,
)
from reservation.messages.message import printable
from reservation.serialization.codec import camel_case

# How many of the letters that failed alike are named in one line.
_NAMED = 10

# When what is to be retried is handled, for a person.
WHEN_RETRIED = (
    "The running consumer handles {what} within a second or two; if none runs, the next one to "
    "start does."
)


def correction_as_json(correction: Correction, with_data: bool) -> dict[str, Any]:
    """Return what a letter was given, as JSON; the data only on request."""
    shown: dict[str, Any] = {
        "by": correction.by,
        "onBehalfOf": correction.on_behalf_of,
        "at": correction.at.isoformat(),
        "reason": correction.reason,
    }
    if with_data:
        shown["data"] = json.loads(correction.data)
    return shown


def table(letters: Sequence[Letter]) -> Table:
    """Return dead letters as a table."""
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("position", "state", "reason", "type", "stream", "consumer", "attempts", "next"):
        shown.add_column(title, overflow="fold")
    for letter in letters:
        cells = [
            str(letter.global_position),
            letter.state,
            letter.reason if letter.behind is None else f"behind {letter.behind}",
            letter.type,
            letter.stream_name,
            letter.consumer,
            str(letter.attempts),
            _when(letter.next_attempt_at),
        ]
        shown.add_row(*[Text(printable(cell)) for cell in cells])
    return shown


def raised_lines(letters: Sequence[Letter]) -> list[str]:
    """Return what was raised and where, each with the positions of the letters that met it."""
    alike: dict[str, list[str]] = {}
    for letter in letters:
        if letter.error_type is not None:
            alike.setdefault(_raised(letter, letter.error_type), []).append(
                str(letter.global_position)
            )
    return [
        f"{', '.join(positions[:_NAMED])}"
        f"{f' and {len(positions) - _NAMED} more' if len(positions) > _NAMED else ''}: {raised}"
        for raised, positions in alike.items()
    ]


def _raised(letter: Letter, type_: str) -> str:
    """Return the class of an exception without its module, and where it was raised."""
    class_ = type_ if " of " in type_ else type_.split(".")[-1]
    return class_ if letter.error_place is None else f"{class_} in {letter.error_place}"


def _when(moment: datetime | None) -> str:
    return "" if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def fields(
    letter: Letter,
    content: Content | None,
    correction: Correction | None,
    raised: Raised,
    decisions: Sequence[LetterDecision],
    with_data: bool,
) -> Table:
    """Return all that is known of one dead letter; data only on request."""
    listed = Table(box=None, pad_edge=False, show_header=False)
    listed.add_column(style="bold", no_wrap=True)
    listed.add_column(overflow="fold")
    shown = {key.replace("_", " "): value for key, value in dataclasses.asdict(letter).items()}
    if content is None:
        shown["message"] = "is no longer in the store"
    else:
        shown["written at"] = content.time
        shown["position in stream"] = content.position
        shown["metadata"] = content.metadata
        if with_data:
            shown["data"] = content.data
    if correction is not None and with_data:
        shown["corrected data"] = correction.data
    shown["error text"] = raised.error_text
    shown["error traceback"] = raised.error_traceback
    for number, decision in enumerate(reversed(decisions), start=1):
        shown[f"decision {number}"] = _decision(decision)
    for key, value in shown.items():
        if value is not None:
            lines = str(value).splitlines() if key in _OF_LINES else [str(value)]
            listed.add_row(key, Text("\n".join(map(_visible, lines))))
    return listed


# The fields whose line breaks are shown as such.
_OF_LINES = ("error text", "error traceback")


def _decision(decision: LetterDecision) -> str:
    who = decision.decided_by
    if decision.on_behalf_of is not None:
        who = f"{decision.on_behalf_of} (as {who})"
    why = "" if decision.reason is None else f": {decision.reason}"
    return f"{decision.decision}, by {who} at {decision.decided_at}{why}"


def decision_as_json(decision: LetterDecision) -> dict[str, Any]:
    """Return a decision about a letter, as JSON."""
    return _values(decision)


def _visible(text: str) -> str:
    """Return the whole text, with control characters made visible."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def as_json(letter: Letter) -> dict[str, Any]:
    """Return a dead letter as JSON."""
    return _values(letter)


def _values(one: Letter | LetterDecision) -> dict[str, Any]:
    return {
        camel_case(key): value.isoformat() if isinstance(value, datetime) else value
        for key, value in dataclasses.asdict(one).items()
    }


def raised_as_json(raised: Raised) -> dict[str, Any]:
    """Return the stored exception as JSON."""
    return {"errorText": raised.error_text, "errorTraceback": raised.error_traceback}


def content_as_json(content: Content, with_data: bool) -> dict[str, Any]:
    """Return a message as JSON; its data only on request."""
    shown = {
        "time": content.time and content.time.isoformat(),
        "position": content.position,
        "metadata": None if content.metadata is None else json.loads(content.metadata),
    }
    if with_data:
        shown["data"] = None if content.data is None else json.loads(content.data)
    return shown
