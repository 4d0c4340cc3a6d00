"""A story as JSON."""

import json
from typing import Any

from cli.consumers import letter_output
from consumers.story.content.entries import Entry, Kind, Story


def as_json(story: Story, with_data: bool) -> dict[str, Any]:
    """Return a story as JSON has it; the data of messages only on request."""
    return {
        "text": story.text,
        "meaning": story.meaning,
        "takenFor": story.taken_for or None,
        "alternatives": [
            {"text": one.text, "meaning": one.meaning, "described": one.described}
            for one in story.alternatives
        ],
        "outcome": None if story.outcome is None else story.outcome.text,
        "traceIds": list(story.traces),
        "entries": [_entry(entry, with_data) for entry in story.entries],
        "lookedFrom": story.looked_from,
        "lookedUntil": story.looked_until,
        "nextAfter": story.next_after,
        "notes": list(story.notes),
    }


def _entry(entry: Entry, with_data: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "kind": entry.kind,
        "time": entry.time.isoformat(),
        "depth": entry.depth,
        "isAsked": entry.is_asked,
    }
    if entry.message is not None and entry.kind not in (Kind.LETTER, Kind.PASS):
        message = entry.message
        shown |= {
            "id": message.id,
            "streamName": message.stream_name,
            "type": message.type,
            "position": message.position,
            "globalPosition": message.global_position,
            "traceId": entry.trace,
            "reason": entry.reason,
            "by": entry.by,
            "comparedWith": entry.compared_with,
            "differences": [
                {
                    "path": one.path,
                    "change": one.change,
                    "mayDiffer": one.may_differ,
                    **(
                        {
                            "before": one.before and one.before.text,
                            "after": one.after and one.after.text,
                        }
                        if with_data
                        else {}
                    ),
                }
                for one in entry.differences
            ],
        }
        if with_data:
            shown["data"] = None if message.data is None else json.loads(message.data)
    if entry.cause is not None:
        shown |= {"cause": entry.cause, "causeStreamName": entry.cause_stream}
    if entry.letter is not None:
        shown["letter"] = letter_output.as_json(entry.letter)
        shown["decisions"] = [
            {
                "decision": one.decision,
                "reason": one.reason,
                "by": one.on_behalf_of or one.decided_by,
                "time": one.decided_at.isoformat(),
            }
            for one in entry.decisions
        ]
    if entry.scheduled is not None:
        cancelled = entry.scheduled.cancelled_at
        shown["scheduled"] = {
            "id": str(entry.scheduled.id),
            "streamName": entry.scheduled.stream_name,
            "type": entry.scheduled.type,
            "dueAt": entry.scheduled.due_at.isoformat(),
            "cancelledAt": cancelled and cancelled.isoformat(),
            "error": entry.scheduled.error,
        }
    if entry.passed is not None:
        shown["passed"] = {
            "consumer": entry.passed.consumer,
            "category": entry.passed.category,
            "globalPosition": entry.global_position,
            "reason": entry.passed.reason,
        }
    if entry.request is not None:
        answered = entry.request.answered_at
        shown["request"] = {
            "id": str(entry.request.id),
            "answeredAt": answered and answered.isoformat(),
            "status": entry.request.status,
        }
    return shown
