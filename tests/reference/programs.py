"""Handlers and projectors as data: small programs that print as they are and can be repeated.

Values are shared on purpose: what a message takes from its source is the very same object.
"""

import asyncio
import dataclasses
import os
import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reservation.messages.message import follow
from tests.reference.messages import COMMANDS, EVENTS, Part

MOST = 6  # values in a list, which would double with each event that shares it

RAISED: dict[str, type[BaseException]] = {
    error.__name__: error
    for error in (
        ValueError,
        RecursionError,
        MemoryError,
        SystemExit,
        KeyboardInterrupt,
        GeneratorExit,
        asyncio.CancelledError,
    )
}

# Characters of a key behind which no further command is made.
LONGEST_KEY = 60


@dataclass(frozen=True)
class Change:
    """Add to a field of the entity, the command, the message made last, or the event."""

    of: str
    field: str
    by: int = 1


@dataclass(frozen=True)
class Clear:
    """Empty a field of one of these."""

    of: str
    field: str


@dataclass(frozen=True)
class Make:
    """Make a message that shares the values of its source.

    Attributes:
        type: the message's class.
        source: what it takes its values from: entity, command, or the message made last.
        to: events, other (a stream of another category), entity (that of another one), command (a
            further command of the component), or reply.
        name: what tells the stream from others.
        expected: the version that the stream must be at.
    """

    type: str
    source: str = "entity"
    to: str = "events"
    name: str = "0"
    expected: int | None = None


@dataclass(frozen=True)
class Repeat:
    """Return the last event once more, the same object."""


@dataclass(frozen=True)
class When:
    """Go on only if the entity, or the command, holds so much."""

    of: str
    at_least: int


@dataclass(frozen=True)
class Raise:
    """Raise, always or for the first times that a message comes here."""

    kind: str = "ValueError"
    times: int | None = None


@dataclass(frozen=True)
class Row:
    """Write a row of the component's own, on the batch's connection."""


@dataclass(frozen=True)
class Nothing:
    """Return nothing, whatever was made."""


@dataclass(frozen=True)
class Place:
    """Let the entity take a field of the event, or of the command, as it is or item by item."""

    field: str
    share: bool = True


Step = Change | Clear | Make | Repeat | When | Raise | Row | Nothing | Place


# What ends the process of a handler without an exception.
ENDS = ["os._exit", "SIGKILL", "SIGTERM"]


class Calls:
    """How often each message came to a step that raises, also over the ends of processes.

    With a folder, this is a process of its own, which may be ended.
    """

    def __init__(self, folder: str = "") -> None:
        self._folder = folder
        self._counts = Counter[str]()

    def fail(self, kind: str) -> None:
        """Raise, or end the process."""
        if not self._folder or kind in RAISED:
            raise RAISED.get(kind, ValueError)("as it was drawn")
        if kind == "os._exit":
            os._exit(3)
        os.kill(os.getpid(), getattr(signal, kind))
        raise ValueError("as it was drawn")

    def next(self, message_id: str) -> int:
        """Count one more."""
        if not self._folder:
            self._counts[message_id] += 1
            return self._counts[message_id]
        path = Path(self._folder) / message_id
        with path.open("a") as file:
            file.write("x")
        return path.stat().st_size


def handle(
    steps: tuple[Step, ...], form: str, calls: Calls, command: Any, entity: Any, context: Any
) -> Any:
    """Run a handler's program."""
    made: dict[str, Any] = {"command": command, "entity": entity, "made": command}
    made["left"] = command.amount  # as it came, for the program may change it
    events: list[Any] = []
    for step in steps:
        match step:
            case Change() | Clear():
                change(step, made.get(step.of))
            case When(of, at_least):
                if size(made[of]) < at_least:
                    break
            case Make():
                made["made"] = make(step, made, events, context)
            case Repeat():
                events.extend(events[-1:])
            case Place() if entity is not None:
                place(step, entity, command)
            case Row():
                context.connection.execute(
                    "INSERT INTO chaos_rows VALUES (%s)", [context.message.id]
                )
            case Raise(kind, times):
                if times is None or calls.next(context.message.id) <= times:
                    calls.fail(kind)
            case Nothing():
                return None
    return tuple(events) if form == "tuple" else events[0] if len(events) == 1 else events


def make(step: Make, made: dict[str, Any], events: list[Any], context: Any) -> Any:
    """Make a message and return it, or write it."""
    command = made["command"]
    source = made[step.source] or command
    if step.to == "command":
        # So that it comes to an end, also where the program changes the amount after the write.
        if made["left"] <= 0 or len(command.key) > LONGEST_KEY:
            return made["made"]
        type_ = COMMANDS[step.type]
        message = follow(command, type_, amount=made["left"] - 1, key=f"{command.key}.{step.name}")
        context.write(message, f"thing:command-{command.thing_id}")
        return message
    message = follow(source, EVENTS[step.type], thing_id=command.thing_id)
    if step.to == "events":
        events.append(message)
    elif step.to == "reply":
        context.reply(message)
    else:
        name = f"thing-{step.name}" if step.to == "entity" else f"other-{step.name}"
        context.write(message, name.replace("$", command.thing_id), expected_version=step.expected)
    return message


def project(steps: tuple[Step, ...], entity: Any, event: Any) -> None:
    """Run a projector's program."""
    for step in steps:
        if isinstance(step, Place):
            place(step, entity, event)
        elif isinstance(step, Change | Clear):
            change(step, event if step.of == "event" else entity)


def place(step: Place, entity: Any, event: Any) -> None:
    value = getattr(event, step.field, None)
    if value is None:
        return
    held = getattr(entity, step.field)
    if step.field == "amount":
        entity.amount += value
    elif step.share or isinstance(value, Part):
        setattr(entity, step.field, value)
    elif isinstance(held, dict):
        held.update(value)
    else:
        held.extend(value[: MOST - len(held)])


def change(step: Change | Clear, of: Any) -> None:
    value = getattr(of, step.field, None)
    by = step.by if isinstance(step, Change) else None
    if isinstance(value, int):
        if not getattr(type(of), dataclasses._PARAMS).frozen:
            setattr(of, step.field, 0 if by is None else value + by)
    elif isinstance(value, Part):
        fill(value.numbers, by, by)
    elif isinstance(value, dict):
        if by is None:
            value.clear()
        else:
            fill(value.setdefault(str(by), []), by, by)
    elif isinstance(value, list):
        fill(value, by, Part(str(by)) if step.field == "parts" else by)


def fill(values: list[Any], by: int | None, value: Any) -> None:
    if by is None:
        values.clear()
    elif len(values) < MOST:
        values.append(value)


def size(of: Any) -> int:
    """Return a number that depends on what something holds."""
    return 0 if of is None else of.amount + len(of.numbers) + len(of.part.numbers)
