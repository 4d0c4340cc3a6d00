"""How much of what is counted is too much: the thresholds of ``--fail-on`` and ``--warn``.

The grammar is ``name[:N|N%]``, several by comma: ``missing`` is reached by more than 0,
``duplicates:100`` by more than 100, and ``duplicates:5%`` by more than 5 % of the commands.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from spark_jobs.common.errors import ThresholdError
from spark_jobs.common.result import VIOLATIONS, Report

# What is counted besides, and is no violation unless somebody asks for it.
MEASURED = ("keyless", "duplicates", "pending", "dead")
NAMES = (*VIOLATIONS, *MEASURED)

# Of what a percentage is taken; of the commands where nothing is said here.
_WHOLES = {"effect-twice": "events", "without-cause": "events", "unhandled": "reserved"}

_ITEM = re.compile(
    r"(?P<name>[a-z-]+)(?::(?P<limit>\d{1,18}|\d{1,3}(?:\.\d{1,6})?(?P<percent>%)))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Threshold:
    """A limit that is reached by more than it says.

    Attributes:
        name: what is counted, one of `NAMES`.
        limit: how many, or how many per cent, are still well.
        percent: whether the limit is in per cent.
        failing: whether the run fails when it is reached, or only warns.
    """

    name: str
    limit: Decimal = Decimal(0)
    percent: bool = False
    failing: bool = True

    @property
    def of(self) -> str:
        """Of what a percentage is taken: ``commands``, ``events`` or ``reserved``."""
        return _WHOLES.get(self.name, "commands")

    def __str__(self) -> str:
        """Say what reaches it, in words."""
        return f"more than {self.limit:,f}" + (
            f" % of the {_CALLED[self.of]}" if self.percent else ""
        )


_CALLED = {"commands": "commands", "events": "events", "reserved": "reserved commands"}


@dataclass(frozen=True, slots=True)
class ExceededThreshold:
    """A threshold that a report has reached.

    Attributes:
        threshold: which one.
        count: how many there are.
        whole: how many there are of what a percentage is taken of.
    """

    threshold: Threshold
    count: int
    whole: int

    def __str__(self) -> str:
        """Say what was counted and what it is more than."""
        share = ""
        if self.threshold.percent and self.whole:
            share = f" ({Decimal(100) * self.count / self.whole:,.2f} %)"
        return f"{self.threshold.name}: {self.count:,}{share}, {self.threshold}"


DEFAULT = tuple(Threshold(name) for name in VIOLATIONS)


def parse(text: str, *, failing: bool = True) -> tuple[Threshold, ...]:
    """Return the thresholds that an option's value names.

    Args:
        text: for example ``missing,effect-twice`` or ``duplicates:5%``.
        failing: whether they fail the run or only warn.

    Raises:
        ThresholdError: it does not follow the grammar, names what is not counted, or names
            something twice.
    """
    found: dict[str, Threshold] = {}
    for item in text.split(","):
        match = _ITEM.fullmatch(item.strip())
        if match is None or match["name"] not in NAMES:
            raise ThresholdError(
                f"{item.strip()!r} is no threshold: write a name, name:N or name:N%, several by "
                f"comma; the names are {', '.join(NAMES)}"
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
    """Return those of the thresholds that a report has reached, in their order.

    Where there is nothing that a percentage could be taken of, anything is more than it.

    Args:
        report: what a run found.
        thresholds: what is held against it.
        instead: by name, what counts in the place of what the report says.
    """
    counts = instead or {}
    wholes = {
        "commands": sum(one.commands for one in report.categories),
        "events": report.events.events,
        "reserved": sum(one.reserved for one in report.effects),
    }
    counted = (
        ExceededThreshold(
            threshold,
            counts.get(threshold.name, report.count(threshold.name)),
            wholes[threshold.of],
        )
        for threshold in thresholds
    )
    return tuple(one for one in counted if _exceeds(one))


def in_order(reached: Iterable[ExceededThreshold]) -> bool:
    """Tell whether none of these thresholds fails the run."""
    return not any(one.threshold.failing for one in reached)


def _exceeds(counted: ExceededThreshold) -> bool:
    limit = counted.threshold.limit
    if counted.threshold.percent:
        return counted.count > 0 and counted.count * 100 > limit * counted.whole
    return counted.count > limit
