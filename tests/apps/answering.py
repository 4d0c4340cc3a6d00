"""Components whose senders ask what became of their commands."""

from dataclasses import dataclass
from typing import Any

from reservation import Component, Context, Key, Reject

LIMIT = 100
SENT = "till:command-1"


@dataclass
class Till:
    total: int = 0


@dataclass(frozen=True)
class Start:
    till_id: str
    owner: str
    sent_at: int = 0


@dataclass(frozen=True)
class Take:
    take_id: str
    till_id: str
    amount: int
    sent_at: int = 0


@dataclass(frozen=True)
class Started:
    till_id: str
    owner: str


@dataclass(frozen=True)
class Taken:
    take_id: str
    till_id: str
    amount: int


@dataclass(frozen=True)
class Asked:
    take_id: str


def till(key: Any = None, once: Any = None) -> Component[Till]:
    """Return a component that rejects what it should not do, and fails at what it cannot.

    An amount of 0 is nothing, a negative one an error, and of one beyond the limit the handler
    decides otherwise although it has written before.
    """
    component = Component("till", entity=Till, id="till_id", attempts=1)

    @component.initiate(Start, ignoring="sent_at")
    def start(command: Start, context: Context) -> Started:
        context.write(Asked("start"), "audit-1")
        if command.owner == "nobody":
            raise Reject("a till has an owner")
        return context.follow(command, Started)

    @component.handle(Take, key=key, once=once)
    def take(command: Take, entity: Till, context: Context) -> Taken | None:
        context.write(Asked(command.take_id), "audit-1")
        if command.amount < 0:
            raise ValueError("no such amount")
        if command.amount > LIMIT:
            entity.total = -1
            raise Reject(f"more than {LIMIT}")
        return context.follow(command, Taken) if command.amount else None

    @component.project(Started)
    def started(entity: Till, event: Started) -> None: ...

    @component.project(Taken)
    def taken(entity: Till, event: Taken) -> None:
        entity.total += event.amount

    return component


def taking(fields: Any = "take_id", **options: Any) -> dict[str, Any]:
    """Return the key of commands, as an option."""
    return {"key": Key(fields, into="tillTaking", ignoring="sent_at", **options)}


INTO, BY_KEY = taking(), taking(per=None)
BY_FUNCTION = taking(lambda command: command.take_id, per=None)

reserved = till(**INTO)
