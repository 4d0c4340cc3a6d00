"""The parts of a report, made of counts."""

from reservation.component import Component
from reservation.declaration.table import declarations
from spark_jobs.common.result import CommandCounts, EffectCounts, Events, SubscriptionCounts
from spark_jobs.facts.codes import KINDS, Codes, MessageKind
from spark_jobs.verdicts.verdicts import Counts

_OF_COMMANDS = ("commands", "keys", "keyless", "duplicates", "conflicts", "corrected")
_OF_PAIRS = ("conflict_mismatches", "reserved", "missing", "pending", "dead")
_OF_EFFECTS = ("handled", "silent", "pending", "unhandled", "dead")
_OF_SUBSCRIBED = ("handled", "passed", "pending", "unhandled", "dead")
_OF_EVENTS = ("events", "causes", "effect_twice", "without_cause")


class Results:
    """The parts of a report, by what was counted."""

    def __init__(self, component: Component, counts: Counts) -> None:
        self._codes = Codes.of(component)
        self._counts = counts

    @property
    def categories(self) -> list[CommandCounts]:
        """Outcomes of commands, for each pair of categories."""
        component = self._codes.component
        commands = (MessageKind.COMMAND, MessageKind.INITIATE)
        return [
            CommandCounts(
                declarations(component).command_category,
                pair,
                initiates=pair == component.name,
                **{name: self._sum(name, n, *commands) for name in (*_OF_COMMANDS, *_OF_PAIRS)},
                multiple=self._sum("multiple", n, *commands, MessageKind.COPY, MessageKind.SILENT),
                orphans=self._sum("orphan", n, MessageKind.COPY, MessageKind.SILENT),
                wrong_type=self._sum("wrong-type", n, MessageKind.WRONG),
            )
            for n, pair in enumerate(self._codes.pairs)
        ]

    @property
    def effects(self) -> list[EffectCounts]:
        """Outcomes of reserved commands, for each of their categories."""
        kinds = (MessageKind.COPY, MessageKind.SILENT)
        return [
            EffectCounts(
                category,
                reserved=self._sum("messages", n, *kinds),
                **{name: self._sum(name, n, *kinds) for name in _OF_EFFECTS},
            )
            for n, category in enumerate(self._codes.reserved)
        ]

    @property
    def subscriptions(self) -> list[SubscriptionCounts]:
        """Outcomes of the messages of other categories."""
        return [
            SubscriptionCounts(
                category,
                subscribed=self._sum("messages", n, MessageKind.SUBSCRIBED),
                **{name: self._sum(name, n, MessageKind.SUBSCRIBED) for name in _OF_SUBSCRIBED},
            )
            for n, category in enumerate(self._codes.subscribed)
        ]

    @property
    def events(self) -> Events:
        """The events of the component's entities."""
        by_code = self._counts.values()
        return Events(
            self._codes.component.name,
            **{name: sum(counts[name] for counts in by_code) for name in _OF_EVENTS},
        )

    @property
    def deleted(self) -> int:
        """The number of deleted messages that consumers' positions name."""
        return sum(counts["deleted"] for counts in self._counts.values())

    def _sum(self, name: str, number: int, *kinds: MessageKind) -> int:
        codes = (KINDS * number + kind for kind in kinds)
        return sum(self._counts[code][name] for code in codes if code in self._counts)
