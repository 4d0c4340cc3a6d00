"""What must be stored: one message at a time, each on the log alone, nothing cached or batched.

It shares with the consumers what a component declares and how messages are encoded, and no more.
"""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

from reservation import PositionInEvents, StateBased, stream_name
from reservation.messages.message import StoredMessage, followed_id
from reservation.serialization import codec
from tests.reference.given import Given, compare, entity_by_stream, known_by, server_key

DONE = ("reserved", "handled", "duplicate", "redelivered", "ignored")


class Failed(Exception):
    """A message cannot be handled; the reason of its dead letter."""


class Interpreter:
    """A log, the dead letters, and what strategies record."""

    def __init__(self, component: Any, copy_id: Callable[[str], str]) -> None:
        self.component, self.copy_id = component, copy_id
        self.log: list[StoredMessage] = []
        self.positions, self.counts = Counter[str](), Counter[str]()
        self.letters: dict[tuple[str, str, int], tuple[str, str | None]] = {}
        self.states, self.memory = dict[str, str](), dict[Any, int]()
        self.copies: set[str] = set()
        self.rows: list[str] = []

    def send(self, id_: Any, name: str, type_: str, data: str | None, metadata: str | None) -> None:
        if not any(message.id == str(id_) for message in self.log):
            at = len(self.stream(name)), len(self.log) + 1
            self.log.append(StoredMessage(str(id_), name, type_, *at, data, metadata, None))

    def stream(self, name: str) -> list[StoredMessage]:
        return [message for message in self.log if message.stream_name == name]

    def drain(self, of: str) -> bool:
        moved = False
        for m in self.log:  # which grows meanwhile
            if m.global_position > self.positions[of] and stream_name.category(m.stream_name) == of:
                self.positions[of], moved = m.global_position, True
                self.counts[self.take(of, m)] += 1
        return moved

    def back(self, messages: int) -> None:
        for of, position in self.positions.items():
            read = [m for m in self.log[:position] if stream_name.category(m.stream_name) == of]
            left = [0, *(m.global_position for m in read)]
            self.positions[of] = left[max(len(read) - messages, 0)]

    def take(self, of: str, m: StoredMessage) -> str:
        """Handle a message; return how it is counted."""
        self.entity = entity_by_stream(self.component, of, m)
        for _ in range(self.component.attempts):
            try:
                outcome = self.dispatch(of, m)
                break
            except Failed as failure:
                outcome = "parked" if self.blocks(of) else str(failure)
        if outcome not in DONE:
            entity = None if outcome == "conflict" else self.entity
            self.letters.setdefault((of, m.stream_name, m.position), (outcome, entity))
        return outcome if outcome in (*DONE, "conflict", "parked") else "dead"

    def blocks(self, of: str) -> bool:
        letters = ((key[0], entity) for key, (_, entity) in self.letters.items())
        return self.entity is not None and (of, self.entity) in letters

    def dispatch(self, of: str, m: StoredMessage) -> str:
        component, commands = self.component, of == self.component.command_category
        if m.type in component.ignored or m.type == "PseudoEvent":
            return "ignored"
        declared = component.reservations.get(m.type)
        direct = m.type in component.initiations or m.type in component.handlers
        if not declared and not (commands and direct):
            raise Failed("unknown_type")
        name = server_key(declared, m) if declared and commands else None
        copies = declared and commands and m.id not in self.copies
        command = None if copies and name else self.decode(m)
        try:
            self.entity = component.entity_stream(command) if command else self.entity
            name = name or (declared.stream_name(command, m.stream_name) if copies else None)
        except Exception as error:
            raise Failed("key") from error
        if self.blocks(of):
            return "parked"
        return self.reserve(m, name, declared) if copies else self.handle(of, m, command)

    def decode(self, m: StoredMessage) -> Any:
        try:
            return m.decode(self.component.types[m.type])
        except Exception as error:
            raise Failed("undecodable") from error

    def reserve(self, m: StoredMessage, name: str, declared: Any) -> str:
        if first := self.stream(name):
            return compare(m, first[0], declared)
        local = {"reserved": True} if declared.into is None else {}
        metadata = dataclasses.replace(m.follow_metadata(), local_properties=local)
        self.copies.add(self.copy_id(name))
        self.send(self.copy_id(name), name, m.type, m.data, metadata.encode())
        return "reserved"

    def handle(self, of: str, m: StoredMessage, command: Any) -> str:
        component, stream = self.component, str(self.entity)
        started = [event for event in self.stream(stream) if event.type != "PseudoEvent"]
        initiation = component.initiations.get(m.type)
        if initiation and started:
            cause = started[0].metadata.causation_message_global_position or 0
            return compare(m, self.log[cause - 1], initiation)
        once = component.strategies.get(m.type)
        line, value = known_by(once, of, m, command, stream)
        if value < 0:
            raise Failed("key")
        if self.memory.get(line, -1) >= value:
            return "redelivered" if isinstance(once, StateBased) else "duplicate"
        ids = {message.id for message in self.log}
        if str(followed_id(m.id, stream, 0)) in ids:
            return "redelivered"
        given = Given(m, stream, lambda name: len(self.stream(name)) - 1)
        entity = component.entity and component.entity()
        if isinstance(once, StateBased):
            entity = codec.decode(component.entity, self.states.get(stream) or codec.encode(entity))
        for event in started if entity is not None and not isinstance(once, StateBased) else ():
            component.projection.apply_stored(entity, event)
        handler = component.handlers.get(m.type)
        try:
            made = (
                handler(command, entity, given) if handler else initiation.handler(command, given)
            )
            if asyncio.iscoroutine(made):
                made = asyncio.run(made)
            writes = given.encoded(made, once, starts=initiation is not None)
        except BaseException as error:
            raise Failed("failed") from error
        if any(str(id_) in ids for id_, *_ in writes):
            return "redelivered"
        for write in writes:
            self.send(*write)
        self.rows += given.rows
        if isinstance(once, StateBased):
            self.states[stream] = codec.encode(entity)
        if line and (not isinstance(once, PositionInEvents) or stream in {w[1] for w in writes}):
            self.memory[line] = value
        return "handled"
