"""Limits on findings: the thresholds of ``--fail-on`` and ``--warn``.

The grammar is ``name[:N|N%]``, separated by commas: ``missing`` is exceeded by more than 0,
``duplicates:100`` by more than 100, and ``duplicates:5%`` by more than 5 % of the commands.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from spark_jobs.common.errors import ThresholdError
from spark_jobs.common.result import VIOLATIONS, Report

# What is also counted, and is a violation only if a threshold names it.
MEASURED = ("keyless", "duplicates", "pending", "dead")
NAMES = (*VIOLATIONS, *MEASURED)

# What a percentage is taken of; of the commands by default.
_WHOLES = {"effect-twice": "events", "without-cause": "events", "unhandled": "reserved"}

_ITEM = re.compile(
    r"(?P<name>[a-z-]+)(?::(?P<limit>\d{1,18}|\d{1,3}(?:\.\d{1,6})?(?P<percent>%)))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Threshold:
    """A limit for the number of one kind of finding.

    Attributes:
        name: what is counted, one of `NAMES`.
        limit: how many, or how many per cent, are allowed.
        percent: whether the limit is in per cent.
        failing: whether exceeding it fails the run, or only warns.
    """

    name: str
    limit: Decimal = Decimal(0)
    percent: bool = False
    failing: bool = True

    @property
    def of(self) -> str:
        """The base of a percentage: ``commands``, ``events`` or ``reserved``."""
        return _WHOLES.get(self.name, "commands")

    def __str__(self) -> str:
        """Return how many are allowed, in words."""
        return f"allowed: {self.limit:,f}" + (
            f" % of the {_CALLED[self.of]}" if self.percent else ""
        )


# The names that are nouns, for one finding and for several.
_NOUNS = {
    "orphan": ("orphan", "orphans"),
    "conflict": ("conflict", "conflicts"),
    "conflict-mismatch": ("conflict mismatch", "conflict mismatches"),
    "duplicates": ("duplicate", "duplicates"),
}
_CALLED = {
    "commands": "commands",
    "events": "events",
    "reserved": "reserved and subscribed messages",
}


@dataclass(frozen=True, slots=True)
class ExceededThreshold:
    """A threshold that a report exceeds.

    Attributes:
        threshold: the threshold.
        count: how many findings there are.
        whole: the number that a percentage is taken of.
    """

    @property
    def heading(self) -> str:
        """The word or words before its text: that it fails the run, or warns."""
        return "Threshold exceeded" if self.threshold.failing else "Warning"

    threshold: Threshold
    count: int
    whole: int

    def __str__(self) -> str:
        """Return what was counted and how much is allowed: ``1 conflict (allowed: 0)``."""
        share = ""
        if self.threshold.percent and self.whole:
            share = f" = {Decimal(100) * self.count / self.whole:,.2f} %"
        name = self.threshold.name
        singular, plural = _NOUNS.get(name, (name, name))
        noun = singular if self.count == 1 else plural
        return f"{self.count:,} {noun}{share} ({self.threshold})"


DEFAULT = tuple(Threshold(name) for name in VIOLATIONS)


def parse(text: str, *, failing: bool = True) -> tuple[Threshold, ...]:
    """Return the thresholds that an option's value names."""
    found: dict[str, Threshold] = {}
    for item in text.split(","):
        match = _ITEM.fullmatch(item.strip())
        if match is None or match["name"] not in NAMES:
            raise ThresholdError(
                f"{item.strip()!r} is not a threshold: write name, name:N or name:N%, separated by "
                f"commas; the names are {', '.join(NAMES)}"
            )
        name = match["name"]
        if name in found:
            raise ThresholdError(f"The threshold of {name} is given twice; leave one out")
        limit = Decimal((match["limit"] or "0").rstrip("%"))
        found[name] = Threshold(name, limit, match["percent"] is not None, failing)
    return tuple(found.values())


def reached(
    report: Report,
    thresholds: Iterable[Threshold] = DEFAULT,
    instead: Mapping[str, int] | None = None,
) -> tuple[ExceededThreshold, ...]:
    """Return the thresholds that a report exceeds, in their order.

    What was accepted does not count. If a percentage is taken of nothing, any finding
    exceeds it.
    """
    counts = instead or {}
    wholes = {
        "commands": sum(counts.commands for counts in report.categories),
        "events": report.events.events,
        # What an event was to follow from.
        "reserved": sum(effects.reserved for effects in report.effects)
        + sum(counts.subscribed for counts in report.subscriptions),
    }
    counted = (
        ExceededThreshold(
            threshold,
            counts.get(threshold.name, report.outstanding(threshold.name)),
            wholes[threshold.of],
        )
        for threshold in thresholds
    )
    return tuple(threshold for threshold in counted if _exceeds(threshold))


def in_order(reached: Iterable[ExceededThreshold]) -> bool:
    """Return whether none of these thresholds fails the run."""
    return not any(exceeded.threshold.failing for exceeded in reached)


def _exceeds(counted: ExceededThreshold) -> bool:
    limit = counted.threshold.limit
    if counted.threshold.percent:
        return counted.count > 0 and counted.count * 100 > limit * counted.whole
    return counted.count > limit
