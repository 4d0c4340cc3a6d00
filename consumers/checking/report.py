"""A check's report: the types of each category, and everything that does not fit."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal
from uuid import UUID

from reservation.inspection.tally import CategoryRole, Knowledge


class CheckKind(StrEnum):
    """The kind of a finding."""

    UNKNOWN_TYPE = "unknown-type"
    UNREADABLE = "unreadable"
    RESERVATION_NAMES = "reservation-names"
    POSITIONS = "positions"
    PARTITIONS = "partitions"
    MEMBERS = "members"
    SNAPSHOTS = "snapshots"
    RIGHTS = "rights"
    LOCKS = "locks"
    FIELDS = "fields"
    UNREAD = "unread"
    ENTITIES = "entities"


Severity = Literal["finding", "note"]


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """One thing that does not fit, or that is good to know.

    Attributes:
        kind: what it is about.
        severity: "finding" if it needs attention before the deployment, "note" if not.
        category: the category; None if it is about none.
        name: the type, process, role or stream; None if it is about none.
        count: how many messages, snapshots or events are concerned; None if that is not counted.
        text: what is found.
        action: what to do.
    """

    kind: CheckKind
    severity: Severity
    category: str | None
    name: str | None
    count: int | None
    text: str
    action: str


@dataclass(frozen=True, slots=True)
class FieldCount:
    """A field that some messages lack, or have although the class does not.

    Attributes:
        field: its name in JSON.
        messages: how many of the messages that were looked at.
    """

    field: str
    messages: int


@dataclass(frozen=True, slots=True)
class CheckedType:
    """The messages of one type in one category.

    Attributes:
        category: the category.
        role: what the component has the category for.
        type: the type; None for all further types where there are too many to name.
        knowledge: what is declared about it.
        messages: how many there are; 0 for a type that is declared and was not found.
        exact: whether that was counted; if not, it is estimated.
        looked_at: how many of them were decoded, or only looked at where they are not read.
        unreadable: how many of those cannot be decoded, or have no usable key.
        first_unreadable: the global position of the first of these.
        problem: what is wrong with that one, without its values.
        missing: the fields of the class that some of the data lacks.
        added: what some of the data has and the class does not.
    """

    category: str
    role: CategoryRole
    type: str | None
    knowledge: Knowledge
    messages: int
    exact: bool
    looked_at: int
    unreadable: int = 0
    first_unreadable: int | None = None
    problem: str | None = None
    missing: tuple[FieldCount, ...] = ()
    added: tuple[FieldCount, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckReport:
    """A component's declaration beside a store, as of one snapshot.

    Attributes:
        component: the component's name.
        time: when the snapshot was taken, by the server's clock.
        store_id: the random id of the store.
        full: whether every message was decoded.
        sample: how many messages of each category were looked at, at most; None if every one was.
        types: by category, the types that are stored or declared.
        findings: what was found, in the order in which it is shown.
    """

    component: str
    time: datetime
    store_id: UUID
    full: bool
    sample: int | None
    types: Sequence[CheckedType]
    findings: Sequence[CheckFinding]

    @property
    def in_order(self) -> bool:
        """Whether nothing needs attention."""
        return not any(finding.severity == "finding" for finding in self.findings)
