"""Components whose messages change, and messages that are written as any client can."""

import json
from dataclasses import dataclass
from typing import Any

from psycopg import Connection

from reservation import Component

SENT = "jar:command-1"
LIMIT = 10


def raw(
    connection: Connection[Any],
    stream_name: str,
    type_: str,
    data: dict[str, Any],
    version: object = None,
) -> None:
    """Write a message, whatever its shape, with the version of it if there is one."""
    metadata = None if version is None else json.dumps({"schemaVersion": version})
    connection.execute(
        "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, %s, %s, %s)",
        [stream_name, type_, json.dumps(data), metadata],
    )


@dataclass
class Jar:
    coins: int = 0


@dataclass(frozen=True)
class Put:
    jar_id: str
    put_id: str


@dataclass(frozen=True)
class CoinPut:
    put_id: str


@dataclass(frozen=True)
class Added:
    put_id: str


@dataclass(frozen=True)
class Refused:
    put_id: str


def jar(event: type, **names: Any) -> Component:
    """Return a component that adds coins up to a limit, and says so with a class of events."""
    component = Component("jar", entity=Jar, id="jar_id")
    component.message(Refused)
    if names:
        component.message(event, **names)

    @component.handle(Put, once=None)
    def put(command: Any, entity: Any, context: Any) -> Any:
        return context.follow(command, event if entity.coins < LIMIT else Refused)

    @component.project(event)
    def added(entity: Any, event: Any) -> None:
        entity.coins += 1

    return component


def puts(first: int, count: int, class_: type = Put) -> list[Any]:
    """Return commands, each with a key of its own."""
    return [class_("1", f"p{n}") for n in range(first, first + count)]
