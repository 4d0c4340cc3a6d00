"""The names and texts of the reports, and how they write numbers, times and stored texts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from reservation.messages import stream_name
from reservation.messages.message import printable
from spark_jobs.common.result import (
    VIOLATIONS,
    Difference,
    Finding,
    Reissues,
    Report,
    field_of,
)
from spark_jobs.report.thresholds import ExceededThreshold, in_order


@dataclass(frozen=True, slots=True)
class FindingKind:
    """A kind of finding, in words.

    Attributes:
        name: its name in options.
        title: its heading.
        meaning: what it means.
        look_at: what to check.
    """

    name: str
    title: str
    meaning: str
    look_at: str


KINDS = (
    FindingKind(
        "missing",
        "Missing",
        "The consumer has read the command, and there is no reservation for its key. "
        "The command is lost.",
        "Check whether the reservation was deleted or the position changed, and whether the "
        "key's declaration changed since.",
    ),
    FindingKind(
        "orphan",
        "Orphans",
        "There is a reservation, but no command that it is a copy of.",
        "Check whether the reservation category was written to or commands were deleted, and "
        "whether the declaration changed.",
    ),
    FindingKind(
        "multiple",
        "More than one message",
        "A reservation stream holds more than one message, so its command may take effect again.",
        "Find out who wrote to the reservation stream. The consumer writes only its first message.",
    ),
    FindingKind(
        "conflict",
        "Conflicts",
        "One key was used for two intents: the content of the command is not that of its key. "
        "The first was kept and this one was discarded.",
        "Ask the sender which one was meant.",
    ),
    FindingKind(
        "conflict-mismatch",
        "Conflict mismatches",
        "The consumer recorded a conflict that is not one, or did not record one.",
        "Compare the command, its reservation and its dead letter. Check whether one of them was "
        "changed, the position was changed, or ignoring= was declared otherwise since.",
    ),
    FindingKind(
        "wrong-type",
        "Wrong type",
        "The message is in a reservation category, and the component reserves no message of its "
        "type there.",
        "Find out who wrote it, and check whether the declaration changed.",
    ),
    FindingKind(
        "effect-twice",
        "Effect twice",
        "One command is followed by two or more events of one type in one stream. "
        "It took effect more than once.",
        "Find out who wrote the events. The store accepts the ids of the framework's events once.",
    ),
    FindingKind(
        "unhandled",
        "Unhandled",
        "The consumer has read the message, which is not a dead letter, but no event follows it. "
        "It is a reserved command, or a message of another component that this one subscribes to "
        "and has not recorded as passed.",
        "Check whether events were deleted or the position was changed, and whether the handler of "
        "the command may write nothing.",
    ),
    FindingKind(
        "without-cause",
        "Without a cause",
        "The event follows no message of the component's command and reservation categories, nor "
        "of those that it subscribes to.",
        "Find out who wrote the event, and check whether commands were deleted.",
    ),
)

# The counts of a reservation category: the field, and what it is called.
COUNTS = (
    ("commands", "commands"),
    ("keys", "distinct keys"),
    ("duplicates", "duplicates"),
    ("reserved", "reserved"),
    ("corrected", "corrected"),
    ("pending", "pending"),
    ("missing", "missing"),
    ("dead", "dead letters"),
    ("orphans", "orphans"),
    ("multiple", "more than one message"),
    ("conflicts", "conflicts"),
    ("conflict_mismatches", "conflict mismatches"),
    ("wrong_type", "wrong type"),
    ("keyless", "without a key"),
)
EFFECTS = (
    ("reserved", "reserved"),
    ("handled", "handled"),
    ("silent", "handled without a trace"),
    ("pending", "pending"),
    ("unhandled", "unhandled"),
    ("dead", "dead letters"),
)
SUBSCRIPTIONS = (
    ("subscribed", "subscribed"),
    ("handled", "handled"),
    ("passed", "passed"),
    ("pending", "pending"),
    ("unhandled", "unhandled"),
    ("dead", "dead letters"),
)
EVENTS = (
    ("events", "events"),
    ("causes", "messages they or pseudo events follow"),
    ("effect_twice", "effect twice"),
    ("without_cause", "without a cause"),
)
# The fields that need a person's attention when they are not 0.
ALARMING = frozenset(map(field_of, VIOLATIONS))

STAGES = (
    ("whole", "from sent to the first event"),
    ("reserved", "from sent to reserved"),
    ("handled", "from reserved to the first event"),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A run in two sentences.

    Attributes:
        in_order: whether the exit status is 0.
        headline: the result.
        explanation: the reason for it; empty where the exceeded thresholds are the reason.
    """

    in_order: bool
    headline: str
    explanation: str


def verdict(report: Report, reached: Sequence[ExceededThreshold]) -> Verdict:
    """Return the verdict on a report, in words."""
    found = {name: report.outstanding(name) for name in VIOLATIONS}
    listed = [f"{count:,} {name}" for name, count in found.items() if count]
    if not in_order(reached):
        failing = [exceeded for exceeded in reached if exceeded.threshold.failing]
        amount = sum(exceeded.count for exceeded in failing)
        several = "needs" if amount == 1 else "need"
        return Verdict(
            False,
            f"{_many(amount, 'finding')} {several} attention.",
            "",  # the thresholds, which are listed, say why
        )
    if listed:
        return Verdict(
            True,
            "Within the limits that were set.",
            f"The findings are within the limits: {', '.join(listed)}.",
        )
    if report.accepted:
        settled = len(report.accepted)
        return Verdict(
            True,
            "All findings were accepted.",
            f"{_many(settled, 'finding')} {'was' if settled == 1 else 'were'} looked at and "
            f"accepted, and there is no other.",
        )
    commands = sum(counts.commands for counts in report.categories)
    subscribed = sum(counts.subscribed for counts in report.subscriptions)
    if not commands and not subscribed:
        what = "messages" if report.subscriptions else "commands"
        return Verdict(True, "Nothing was sent yet.", f"There are no {what} to compare.")
    left = {
        "still to be read": report.count("pending"),
        "dead letters": report.count("dead"),
        "handled in a way that leaves no trace": sum(effects.silent for effects in report.effects),
    }
    rest = [f"{count:,} {what}" for what, count in left.items() if count]
    is_comparable = report.effects or any(counts.initiates for counts in report.categories)
    if rest or (commands and not is_comparable):
        parts = [_many(commands, "command")] if commands or not subscribed else []
        parts += [_many(subscribed, "subscribed message")] if subscribed else []
        return Verdict(
            True,
            "Nothing was lost, nothing was done twice.",
            f"Of {_listed(parts)}, those that the consumers have handled took effect "
            f"once" + (f"; {_listed(rest)}." if rest else "."),
        )
    said = []
    if commands:
        keys = sum(counts.keys for counts in report.categories)
        said.append(
            f"{_many(commands, 'command')} with {_many(keys, 'distinct key')}: each "
            f"key was reserved once, and its effect is there once."
        )
    if subscribed:
        said.append(
            f"{_many(subscribed, 'subscribed message')}: what followed from each is there once, or "
            f"that nothing did is recorded."
        )
    what = "message" if subscribed else "command"
    return Verdict(True, f"Every {what} took effect once.", " ".join(said))


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def shown(text: object) -> str:
    """Return a text of the store as it may be shown anywhere; a dash where there is none."""
    return "–" if text is None else printable(str(text))  # noqa: RUF001  a dash


def since(position: int) -> str:
    """Return what a report says of the messages that it covers, if these are not all."""
    return (
        f"This report covers the messages from global position {position:,} on, and older ones "
        f"with the same keys or causes, but no older commands that were not reserved."
    )


# In the place of the type of a deleted message, which only the position of a consumer names.
DELETED = "deleted; a consumer's position stands at it"


def deleted(count: int) -> str:
    """Return what a report says of deleted messages that consumers stand at."""
    if count == 1:
        return "The message that a consumer's position stands at was deleted; it is missing."
    return f"{count:,} messages that consumers' positions stand at were deleted; they are missing."


# So much of a value is shown where space is short, in characters.
_SHOWN = 40


def differences(finding: Finding) -> str:
    """Return in what a command in conflict differs from the first one of its key."""
    return "; ".join(map(_difference, finding.differences))


def _difference(one: Difference) -> str:
    if one.what == "unreadable":
        return "one cannot be decoded"
    name = shown(one.field) if one.field is not None else "the type"
    if one.command is None and one.first is None:
        return name
    command, first = (shortened(shown(text), _SHOWN) for text in (one.command, one.first))
    return f"{name}: {command}, first {first}"


def type_(finding: Finding) -> str:
    """Return the type of a finding's message, or that it was deleted."""
    return DELETED if finding.type is None else shown(finding.type)


def key(finding: Finding) -> str:
    """Return the idempotence key that a finding is about, as the id of the stream that it names."""
    named = finding.key_stream
    return shown(None if named is None else stream_name.identifier(named) or named)


def shortened(text: str, length: int) -> str:
    """Return a text of at most this many characters."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def at(time: datetime | None) -> str:
    """Return a time to the second; a dash for one that cannot be read."""
    return shown(None) if time is None else f"{time:%Y-%m-%d %H:%M:%S}"


def untimed(reissues: Reissues) -> str:
    """Return what a report says of commands whose time cannot be read."""
    times = "has a time" if reissues.untimed == 1 else "have times"
    counts = "it counts" if reissues.untimed == 1 else "they count"
    return (
        f"{_many(reissues.untimed, 'command')} {times} outside of the years 1 to 9999, so {counts} "
        f"in no latency, volume, gap or burst; the first is at global position "
        f"{reissues.first_untimed}."
    )


# Below how many seconds a unit is used, how many seconds it has, and its name.
_UNITS = (
    (1e-3, 1e-6, "µs"),
    (1, 1e-3, "ms"),
    (120, 1, "s"),
    (7200, 60, "min"),
    (48 * 3600, 3600, "h"),
    (math.inf, 86400, "d"),
)


def duration(value: float | timedelta | None) -> str:
    """Return a time span with two or three digits that count; a dash where there is none."""
    if value is None:
        return "–"  # noqa: RUF001  a dash
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not math.isfinite(seconds):
        return "–"  # noqa: RUF001  a dash
    if seconds == 0:
        return "0 s"
    unit, name = next((unit, name) for limit, unit, name in _UNITS if abs(seconds) < limit)
    return f"{_digits(seconds / unit)} {name}"


def _digits(amount: float) -> str:
    return f"{amount:,.{0 if abs(amount) >= 100 else 1}f}".removesuffix(".0")


def compact(count: int) -> str:
    """Return a count in few characters, for the ticks of an axis."""
    for size, letter in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.1f}".removesuffix(".0") + letter
    return str(count)


def share(part: int, whole: int) -> str:
    """Return a part in per cent of a whole, never 0 % or 100 % of what is more or less."""
    if not whole:
        return ""
    percent = 100 * part / whole
    if part and percent < 0.01:
        return "< 0.01 %"
    if part < whole and percent > 99.99:
        return "> 99.99 %"
    return f"{percent:.2f}".rstrip("0").rstrip(".") + " %"
