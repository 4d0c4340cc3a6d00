"""A report, made of counts."""

from datetime import datetime

from reservation.component import Component
from reservation.declaration.table import declarations
from spark_jobs.common.result import (
    CommandCounts,
    EffectCounts,
    Events,
    Report,
    SubscriptionCounts,
)
from spark_jobs.facts.codes import KINDS, Codes, MessageKind
from spark_jobs.verdicts.verdicts import Counts

_OF_COMMANDS = ("commands", "keys", "keyless", "duplicates", "conflicts", "corrected")
_OF_PAIRS = ("conflict_mismatches", "reserved", "missing", "pending", "dead")
_OF_EFFECTS = ("handled", "silent", "pending", "unhandled", "dead")
_OF_SUBSCRIBED = ("handled", "passed", "pending", "unhandled", "dead")
_OF_EVENTS = ("events", "causes", "effect_twice", "without_cause")


def counted(component: Component, time: datetime, counts: Counts) -> Report:
    """Return a report with what was counted, without rows."""
    codes = Codes.of(component)

    def total(name: str, number: int, *kinds: MessageKind) -> int:
        found = (KINDS * number + kind for kind in kinds)
        return sum(counts[code][name] for code in found if code in counts)

    of_commands = (MessageKind.COMMAND, MessageKind.INITIATE)
    of_copies = (MessageKind.COPY, MessageKind.SILENT)
    return Report(
        component=component.name,
        time=time,
        categories=[
            CommandCounts(
                declarations(component).command_category,
                pair,
                initiates=pair == component.name,
                **{name: total(name, n, *of_commands) for name in (*_OF_COMMANDS, *_OF_PAIRS)},
                multiple=total("multiple", n, *of_commands, *of_copies),
                orphans=total("orphan", n, *of_copies),
                wrong_type=total("wrong-type", n, MessageKind.WRONG),
            )
            for n, pair in enumerate(codes.pairs)
        ],
        effects=[
            EffectCounts(
                category,
                reserved=total("messages", n, *of_copies),
                **{name: total(name, n, *of_copies) for name in _OF_EFFECTS},
            )
            for n, category in enumerate(codes.reserved)
        ],
        events=Events(
            component.name,
            **{name: sum(of_code[name] for of_code in counts.values()) for name in _OF_EVENTS},
        ),
        findings=(),
        subscriptions=[
            SubscriptionCounts(
                category,
                subscribed=total("messages", n, MessageKind.SUBSCRIBED),
                **{name: total(name, n, MessageKind.SUBSCRIBED) for name in _OF_SUBSCRIBED},
            )
            for n, category in enumerate(codes.subscribed)
        ],
        deleted=sum(of_code["deleted"] for of_code in counts.values()),
    )
