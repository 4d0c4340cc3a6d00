"""Each component as a flow: what comes in, what is copied, what it brings about, who goes on.

A declaration says which category holds what. Where none was given, the names do: the commands of
``account`` are in ``account:command``, what else it reads is of others if another component is
named so, and else holds its reservations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg import Connection

from cli.console.reading.consumers import MOST_COUNTED, known_reads
from consumers.group.inspection.status import snapshot
from consumers.group.inspection.stored_positions import Reads
from consumers.group.inspection.summary import ConsumerSummary, Summary, read_summary
from reservation.component import Component
from reservation.messages.stream_name import command_category
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("cli.console.reading", "flow.sql")

# Seconds over which the rates are taken, and the messages that are counted for one at most.
WINDOW = 60.0
_MOST = 1_000

# Messages of a category of which is looked at what brought them about.
_LOOKED_AT = 100


@dataclass(frozen=True, slots=True)
class Traffic:
    """What is written to a category.

    Attributes:
        rate: messages a second, over the last minute, or since the last of `_MOST` messages.
        last_at: when the last one was written, in UTC; None if there is none.
        sources: the categories of what brought the newest ones about.
    """

    rate: float
    last_at: datetime | None
    sources: Sequence[str]


@dataclass(frozen=True, slots=True)
class Stage:
    """A category that a component reads.

    Attributes:
        category: its name.
        traffic: what is written to it.
        summary: how the component's consumer stands in it.
    """

    category: str
    traffic: Traffic
    summary: ConsumerSummary


@dataclass(frozen=True, slots=True)
class Onward:
    """A category that goes on with what a component has done.

    Attributes:
        category: its name.
        readers: the components that read it.
        of_events: whether it holds the component's own events, rather than what the component wrote
            for others.
    """

    category: str
    readers: Sequence[str]
    of_events: bool


@dataclass(frozen=True, slots=True)
class Flow:
    """One component.

    Attributes:
        name: its name.
        commands: its command category; None if it reads none.
        subscriptions: the categories of others that it reads.
        copies: its reservation categories.
        events: what it brings about.
        onward: who goes on with it.
    """

    name: str
    commands: Stage | None
    subscriptions: Sequence[Stage]
    copies: Sequence[Stage]
    events: Traffic
    onward: Sequence[Onward]

    @property
    def stages(self) -> list[Stage]:
        """All that it reads."""
        own = [] if self.commands is None else [self.commands]
        return [*own, *self.subscriptions, *self.copies]


@dataclass(frozen=True, slots=True)
class Overview:
    """All components.

    Attributes:
        summary: the consumers and the schedule, as they were seen.
        flows: the components, by their names.
    """

    summary: Summary
    flows: Sequence[Flow]


def read_overview(
    connection: Connection[Any], components: Mapping[str, Component[Any]]
) -> Overview:
    """Look at all components under one snapshot.

    Args:
        connection: of an auditor.
        components: those whose declaration is known, by their names.

    Raises:
        StoreError: the database refuses, or is away.
    """
    with snapshot(connection):
        reads = known_reads(connection, components.values())
        summary = read_summary(connection, reads, most_counted=MOST_COUNTED)
        names = {consumer for consumer, _ in reads}
        categories = sorted({category for _, category in reads} | names)
        traffic = _traffic(connection, categories)
    by_component: dict[str, list[Stage]] = {name: [] for name in sorted(names)}
    for one in summary.consumers:
        stage = Stage(one.category, traffic[one.category], one)
        by_component[one.consumer].append(stage)
    flows = [
        _flow(name, stages, components.get(name), reads, traffic)
        for name, stages in by_component.items()
    ]
    return Overview(summary, flows)


def _traffic(connection: Connection[Any], categories: Sequence[str]) -> dict[str, Traffic]:
    values = {
        "categories": categories,
        "window": WINDOW,
        "most": _MOST,
        "looked_at": _LOOKED_AT,
    }
    return {
        category: Traffic(recent / seconds if seconds else float(recent), last_at, sources)
        for category, recent, seconds, last_at, sources in connection.execute(
            _QUERIES["traffic"], values
        )
    }


def _flow(
    name: str,
    stages: Sequence[Stage],
    component: Component[Any] | None,
    reads: Sequence[Reads],
    traffic: Mapping[str, Traffic],
) -> Flow:
    commands = command_category(name)
    others = {consumer for consumer, _ in reads if consumer != name}
    of_others = others | {command_category(other) for other in others}
    subscribed = of_others if component is None else set(component.subscribed_categories)
    copies = [s for s in stages if s.category != commands and s.category not in subscribed]
    own = {stage.category for stage in copies}
    onward = [
        Onward(category, readers, category == name)
        for category in sorted(traffic)
        if (readers := [consumer for consumer, read in reads if read == category])
        and category not in own | others  # others' events follow from what others handled
        and (
            category == name
            or not {stage.category for stage in stages}.isdisjoint(traffic[category].sources)
        )
        and (category != commands or _is_sent_by_itself(traffic[category], own | {commands}))
    ]
    return Flow(
        name,
        next((stage for stage in stages if stage.category == commands), None),
        [s for s in stages if s.category in subscribed],
        copies,
        traffic[name],
        onward,
    )


def _is_sent_by_itself(commands: Traffic, own: set[str]) -> bool:
    return not own.isdisjoint(commands.sources)
