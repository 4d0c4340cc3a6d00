"""The history of a component, as data: messages are sent, consumers run, die and are cut off."""

import uuid
import zlib
from dataclasses import dataclass
from typing import Any

from reservation import Metadata, Write
from reservation.serialization import codec
from tests.reference.messages import COMMANDS, Part
from tests.reference.plans import Plan

_IDS = uuid.UUID("5b3f4c0e-7d5e-4c0f-9a55-0c1a7f6f0a11")


@dataclass(frozen=True)
class Sent:
    """A message that a sender writes.

    Attributes:
        n: what its id is made of.
        type: the command's class.
        thing: the entity's id.
        key: what the idempotence key is, and what the content is made of.
        revision: as the command has it.
        source: as the command has it.
        twist: makes other content of the same key.
        flaw: what is wrong with it, if anything.
        reply: whether it names a stream for replies.
    """

    n: int
    type: str
    thing: str
    key: str
    revision: int = 0
    source: str = "s"
    twist: int = 0
    flaw: str = ""
    reply: bool = False

    @property
    def command(self) -> Any:
        """The command, as its sender has it."""
        value = zlib.crc32(self.key.encode()) % 4 + self.twist
        return COMMANDS[self.type](
            thing_id=self.thing,
            key=self.key,
            number=value,
            revision=-1 if self.flaw == "revision" else self.revision,
            source=self.source,
            sent=self.n,
            amount=value,
            numbers=[value],
            groups={"0": [value]},
            part=Part("p", [value]),
        )

    @property
    def write(self) -> Write | None:
        """What the client is given; None where no client of ours would write it."""
        id_, stream, _, _, metadata = self.row
        if self.flaw not in ("", "revision", "forged"):
            return None
        return Write(self.command, stream, id_, Metadata.decode(metadata))

    @property
    def row(self) -> tuple[uuid.UUID, str, str, str | None, str | None]:
        """The message: id, stream, type, data and metadata."""
        data: str | None = codec.encode(self.command)
        type_ = {"unknown": "Unknown", "ignored": "Ignored"}.get(self.flaw, self.type)
        if self.flaw == "undecodable":
            data = str(data).replace('"amount":', '"amount":"x","was":')
        elif self.flaw == "keyless":
            data = str(data).replace('"key":', '"was":')
        elif self.flaw == "dataless":
            data = None
        name = f"caller-{self.thing}" if self.reply else None
        local = {"reserved": True} if self.flaw == "forged" else {}  # only a copy says so
        metadata = Metadata(
            reply_stream_name=name, properties={"n": self.n}, local_properties=local
        )
        stream = f"thing:command-{self.thing}"
        return uuid.uuid5(_IDS, str(self.n)), stream, type_, data, metadata.encode()


@dataclass(frozen=True)
class Send:
    """Messages are sent, in one write."""

    messages: tuple[Sent, ...]


@dataclass(frozen=True)
class Fault:
    """Something happens at the n-th exchange of a consumer with the server.

    Attributes:
        consumer: which of them, by its category.
        at: the exchange, from 1.
        kind: die, die after (the statement was executed), cut, or cut after.
    """

    consumer: int
    at: int
    kind: str


@dataclass(frozen=True)
class Run:
    """The consumers start, take their categories to the ends one after another, and stop."""

    batch_size: int = 1000
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True)
class Back:
    """Positions are set back by some messages."""

    messages: int


Action = Send | Run | Back


@dataclass(frozen=True)
class History:
    """A component and its history.

    Attributes:
        plan: the component.
        partitions: how many its categories have.
        actions: what happens, in order.
        impatient: whether batches wait for no async call.
    """

    plan: Plan
    partitions: int
    actions: tuple[Action, ...]
    impatient: bool = False
