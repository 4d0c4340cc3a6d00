"""What ``reservation status --json`` prints."""

from dataclasses import asdict

from cli.consumers.pause import pause_as_json
from consumers.group.inspection.status import Status
from consumers.group.inspection.waits import KINDS


def as_json(seen: Status) -> dict[str, object]:
    """Return a look at the consumers as an object."""
    schedule, held, series = seen.schedule, seen.oldest_snapshot, seen.series
    return {
        "time": seen.time.isoformat(),
        "storeId": str(seen.store_id),
        "scheduled": {
            "messages": schedule.messages,
            "nextAt": schedule.next_at and schedule.next_at.isoformat(),
            "overdue": schedule.overdue,
            "overdueSince": schedule.overdue_since and schedule.overdue_since.isoformat(),
            "refused": schedule.refused,
            "dead": schedule.dead,
        },
        "oldestSnapshot": held
        and {
            "kind": held.kind,
            "name": held.name,
            "role": held.role,
            "application": held.application,
            "since": held.since.isoformat(),
        },
        "unread": [
            {"category": one.category, "messages": one.messages, "atLeast": one.at_least}
            for one in seen.unread
        ],
        "breakers": [
            {
                "consumer": one.consumer,
                "category": one.category,
                "type": one.type,
                "state": one.state,
                "since": one.since and one.since.isoformat(),
                "until": one.until and one.until.isoformat(),
                "errorType": one.error_type,
            }
            for one in seen.breakers
        ],
        "partitions": [
            {
                "consumer": partition.stored.consumer,
                "category": partition.stored.category,
                "partition": partition.stored.partition,
                "partitions": partition.stored.partitions,
                "position": partition.stored.position,
                "messageId": partition.stored.message_id and str(partition.stored.message_id),
                "foreign": partition.stored.foreign,
                "epoch": partition.stored.epoch,
                "head": partition.head,
                "lagMessages": partition.lag.messages,
                "lagAtLeast": partition.lag.at_least,
                "lagSeconds": partition.lag.seconds,
                "unreadable": partition.lag.unreadable,
                "holder": partition.stored.holder and asdict(partition.stored.holder),
                "updatedAt": partition.stored.updated_at
                and partition.stored.updated_at.isoformat(),
                "dead": partition.letters.dead,
                "parked": partition.letters.parked,
                "waiting": partition.letters.waiting,
                "reasons": {kind: partition.letters.counts.get(kind, 0) for kind in KINDS},
                "nextAttemptAt": partition.next_attempt_at
                and partition.next_attempt_at.isoformat(),
            }
            for partition in seen.partitions
        ],
        "pauses": [pause_as_json(one) for one in seen.pauses],
        "recurring": {
            "series": series.declared,
            "nextAt": series.next_at and series.next_at.isoformat(),
            "overdue": series.overdue,
            "failing": series.failing,
            "stopped": series.stopped,
        },
    }
