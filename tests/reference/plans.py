"""Components as data, and the real components that they describe."""

from dataclasses import dataclass, field
from typing import Any

from reservation import Component, Key
from reservation.declaration.table import declarations
from reservation.handlers.retry import Retry
from reservation.strategies import (
    MessageIdInEvents,
    PositionInEvents,
    Processed,
    Revisions,
    StateBased,
)
from tests.reference.messages import COMMANDS, EVENTS, Thing
from tests.reference.programs import Calls, Row, Step, handle, project
from tests.support.awaiting import awaited

ONCE: dict[str, Any] = {
    "": None,
    "processed": Processed(),
    "processed key": Processed(key="key"),
    "message id": MessageIdInEvents(),
    "revisions": Revisions(),
    "sequence": PositionInEvents(),
    "sequence, pseudo": PositionInEvents(pseudo_events=True),
    "whole": StateBased("whole"),
    "delta": StateBased("delta"),
}

KEYS: dict[str, Any] = {
    "key": "key",
    "number": "number",
    "both": ("key", "number"),
    "function": lambda command: [command.key, command.number],
}

COMMAND_CATEGORY = "thing:command"


@dataclass(frozen=True)
class Role:
    """How one type of command is declared.

    Attributes:
        command: the class's name.
        how: direct, reserve or initiate.
        steps: the handler's program.
        once: the strategy, a name of `ONCE`.
        key: the idempotence key, a name of `KEYS`.
        into: the reservation category.
        led: whether the entity leads the reservation streams.
        form: what the handler returns its events in.
        awaited: whether the handler is async, if it can be: it uses no connection.
    """

    command: str
    how: str = "direct"
    steps: tuple[Step, ...] = ()
    once: str = ""
    key: str = "key"
    into: str = "thingA"
    led: bool = True
    form: str = "list"
    awaited: bool = False

    @property
    def is_async(self) -> bool:
        """Whether the handler is async."""
        uses_connection = any(isinstance(step, Row) for step in self.steps)
        return self.awaited and not uses_connection


@dataclass(frozen=True)
class Plan:
    """A component.

    Attributes:
        roles: one for each of its commands.
        projectors: by type of event, a program; none of an entity that there is not.
        entity: whether there is one.
        snapshot_every: as the component has it.
        attempts: as the component has it.
    """

    roles: tuple[Role, ...]
    projectors: dict[str, tuple[Step, ...]] = field(default_factory=dict)
    entity: bool = True
    snapshot_every: int | None = None
    attempts: int = 3

    @property
    def categories(self) -> list[str]:
        """The categories that are read, commands first."""
        reserved = {role.into for role in self.roles if role.how == "reserve"}
        return [COMMAND_CATEGORY, *sorted(reserved)]


def build(plan: Plan, folder: str = "") -> Component:
    """Return the component that a plan describes."""
    component = Component(
        "thing",
        entity=Thing if plan.entity else None,
        id="thing_id",
        attempts=plan.attempts,
        replies_to="caller",
        snapshot_every=plan.snapshot_every if plan.entity else None,
    )
    # No result depends on the pauses between attempts.
    declarations(component).default_retry = Retry(attempts=plan.attempts, first="1ms", most="1ms")
    calls = Calls(folder)
    for role in plan.roles:
        _declare(component, role, calls)
    for name, steps in plan.projectors.items() if plan.entity else ():
        component.project(EVENTS[name])(_projector(steps))
    component.message(*EVENTS.values())
    component.ignore("Ignored")
    component.check()
    return component


def _declare(component: Component, role: Role, calls: Calls) -> None:
    command = COMMANDS[role.command]
    if role.how == "initiate":

        def initiate(command, context):
            return handle(role.steps, role.form, calls, command, None, context)

        initiator = awaited(initiate) if role.is_async else initiate
        component.initiate(command, ignoring="sent")(initiator)
        return
    key: Any = None
    if role.how == "reserve":
        key = Key(
            KEYS[role.key],
            into=role.into,
            per="thing_id" if role.led else None,
            ignoring="sent",
            shared=True,
        )

    def decide(command, entity, context):
        return handle(role.steps, role.form, calls, command, entity, context)

    handler = awaited(decide) if role.is_async else decide
    once = ONCE[role.once]
    component.handle(command, key=key, once=once)(handler)


def _projector(steps: tuple[Step, ...]) -> Any:
    def projector(entity, event):
        project(steps, entity, event)

    return projector
