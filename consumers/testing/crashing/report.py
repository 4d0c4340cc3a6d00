"""The crash kit's results: kinds of bugs, findings, and the report."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from reservation.errors import ReservationError


class BugKind(StrEnum):
    """The kind of a handler's bug; each has a way out."""

    OWN_ID = "own uuid"
    OWN_CLOCK = "own clock"
    OUTSIDE_EFFECT = "effect outside"
    GLOBAL_STATE = "state in a global"
    OWN_CONNECTION = "own connection"
    RANDOM_ORDER = "random order"
    IGNORED_VERSION = "ignored version"
    MUTATION = "mutation of a shared object"
    SWALLOWED_ERROR = "swallowed exception"
    LEFT_RUNNING = "left running"
    NOT_REPEATABLE = "not repeatable"

    @property
    def way_out(self) -> str:
        """What to do about it."""
        return _WAYS_OUT[self]


_WAYS_OUT: Mapping[BugKind, str] = {
    BugKind.OWN_ID: "take ids from context.id(name) and random numbers from context.random",
    BugKind.OWN_CLOCK: "take the time from context.time",
    BugKind.OUTSIDE_EFFECT: (
        "write a message with context.write and let its handler make the call with context.id as "
        "the idempotency key; allow= names what is meant"
    ),
    BugKind.GLOBAL_STATE: (
        "keep state in the entity, by events and a projector, or in a table through "
        "context.connection"
    ),
    BugKind.OWN_CONNECTION: (
        "use context.connection, whose changes commit with the events and the position"
    ),
    BugKind.RANDOM_ORDER: "sort what has no order, such as a set or the files of a folder",
    BugKind.IGNORED_VERSION: (
        "give context.write the expected_version that was read, change a row in one statement, or "
        "read it with SELECT ... FOR UPDATE"
    ),
    BugKind.MUTATION: (
        "make a new object instead, and let a projector alone change the entity; give each "
        "instance its own default with field(default_factory=...)"
    ),
    BugKind.SWALLOWED_ERROR: (
        "catch only the errors that are expected, around `with context.connection.transaction():`, "
        "and let all others pass"
    ),
    BugKind.LEFT_RUNNING: (
        "join threads, await tasks, wait for processes and release locks before the handler returns"
    ),
    BugKind.NOT_REPEATABLE: "let what the handler does depend on its message and entity alone",
}


@dataclass(frozen=True, slots=True)
class Bug:
    """A bug of a handler.

    Attributes:
        kind: what is wrong.
        handler: the handler's module and name, and the type of its messages; where no single
            handler could be made out, the component.
        where: at which call, statement or kill it showed.
        what: what was seen there: the object that differs, or the access.
    """

    kind: BugKind
    handler: str
    where: str
    what: str

    @property
    def way_out(self) -> str:
        """What to do about it."""
        return self.kind.way_out

    def __str__(self) -> str:
        return (
            f"{self.kind}: {self.handler}\n  {self.where}: {self.what}\n  Way out: {self.way_out}"
        )


@dataclass(frozen=True, slots=True)
class CrashReport:
    """The report of the crash kit.

    Attributes:
        findings: the bugs, one for each kind and handler.
        kills: how many processes were killed.
        statements: how many exchanges with the server a run without a kill has.
        calls: how many calls of handlers it has.
        runs: how many runs were compared.
        points: how many places for a kill there are; more than ``kills`` if these are a sample.
        seed: of the sample.
        counts: what became of the messages in a run without a kill.
    """

    findings: tuple[Bug, ...]
    kills: int
    statements: int
    calls: int
    runs: int
    points: int
    seed: int
    counts: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        became = ", ".join(f"{number} {what}" for what, number in sorted(self.counts.items()))
        sampled = "" if self.kills >= self.points else f" of {self.points} places, seed {self.seed}"
        summary = (
            f"{len(self.findings)} finding{'' if len(self.findings) == 1 else 's'}; "
            f"{self.runs} runs, {self.kills} kills{sampled}; a run has {self.statements} exchanges "
            f"with the server and {self.calls} calls of handlers; messages: {became or 'none'}"
        )
        return "\n".join([*map(str, self.findings), summary])


class CrashFindings(AssertionError):
    """The crash kit found bugs.

    Attributes:
        report: the whole report.
    """

    def __init__(self, report: CrashReport) -> None:
        """Keep the report, whose text is the error's."""
        super().__init__(f"The crash kit found bugs\n{report}")
        self.report = report


class CrashKitError(ReservationError):
    """The crash kit cannot run a component as it was asked to."""
