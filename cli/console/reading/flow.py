"""Each component as a flow: what comes in, what is copied, its effects, and who reads these.

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
from consumers.group.inspection.stored_positions import ConsumerId
from consumers.group.inspection.summary import ConsumerSummary, Summary, read_summary
from reservation.component import Component
from reservation.declaration.table import declarations
from reservation.messages.stream_name import command_category
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("cli.console.reading", "flow.sql")

# Seconds over which the rates are taken, and the messages that are counted for one at most.
WINDOW = 60.0
_MOST = 1_000


@dataclass(frozen=True, slots=True)
class Traffic:
    """Messages that are written to a category each second, and when the last one was, in UTC."""

    rate: float
    last_at: datetime | None


@dataclass(frozen=True, slots=True)
class CategoryStage:
    """A category that a component reads, and how its consumer stands in it."""

    category: str
    traffic: Traffic
    summary: ConsumerSummary


@dataclass(frozen=True, slots=True)
class Flow:
    """One component: what it reads, the traffic of its events, and who reads these."""

    name: str
    commands: CategoryStage | None
    subscriptions: Sequence[CategoryStage]
    copies: Sequence[CategoryStage]
    events: Traffic
    readers: Sequence[str]

    @property
    def stages(self) -> list[CategoryStage]:
        """All that it reads."""
        own = [] if self.commands is None else [self.commands]
        return [*own, *self.subscriptions, *self.copies]


@dataclass(frozen=True, slots=True)
class Overview:
    """The consumers and the schedule as they were seen, and the components by their names."""

    summary: Summary
    flows: Sequence[Flow]


def read_overview(
    connection: Connection[Any], components: Mapping[str, Component[Any]]
) -> Overview:
    """Look at all components under one snapshot; those given are drawn as they are declared."""
    with snapshot(connection):
        reads = known_reads(connection, components.values())
        summary = read_summary(connection, reads, most_counted=MOST_COUNTED)
        names = {consumer for consumer, _ in reads}
        traffic = _traffic(connection, sorted({category for _, category in reads} | names))
    stages: dict[str, list[CategoryStage]] = {name: [] for name in sorted(names)}
    for one in summary.consumers:
        stages[one.consumer].append(CategoryStage(one.category, traffic[one.category], one))
    return Overview(
        summary,
        [
            _flow(name, own, components.get(name), reads, traffic[name])
            for name, own in stages.items()
        ],
    )


def _traffic(connection: Connection[Any], categories: Sequence[str]) -> dict[str, Traffic]:
    values = {"categories": categories, "window": WINDOW, "most": _MOST}
    return {
        category: Traffic(recent / seconds if seconds else float(recent), last_at)
        for category, recent, seconds, last_at in connection.execute(_QUERIES["traffic"], values)
    }


def _flow(
    name: str,
    stages: Sequence[CategoryStage],
    component: Component[Any] | None,
    reads: Sequence[ConsumerId],
    events: Traffic,
) -> Flow:
    commands = command_category(name)
    others = {consumer for consumer, _ in reads if consumer != name}
    of_others = others | {command_category(other) for other in others}
    subscribed = (
        of_others if component is None else set(declarations(component).subscribed_categories)
    )
    return Flow(
        name,
        next((stage for stage in stages if stage.category == commands), None),
        [stage for stage in stages if stage.category in subscribed],
        [stage for stage in stages if stage.category not in subscribed | {commands}],
        events,
        [consumer for consumer, category in reads if category == name],
    )
