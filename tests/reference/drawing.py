"""Components and histories at random: from hypothesis, which shrinks them, or from a seed."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from hypothesis import strategies as st

from tests.reference.environment import ENVIRONMENT
from tests.reference.histories import Back, Fault, History, Run, Send, Sent
from tests.reference.messages import COMMANDS, EVENTS
from tests.reference.plans import KEYS, ONCE, Plan, Role
from tests.reference.programs import (
    RAISED,
    Change,
    Clear,
    Make,
    Nothing,
    Place,
    Raise,
    Repeat,
    Row,
    Step,
    When,
)

T = TypeVar("T")


class Chance(Protocol):
    """What decides."""

    def pick(self, options: Sequence[T]) -> T:
        """Return one of some options; of hypothesis, the first is the simplest."""

    def number(self, low: int, high: int) -> int:
        """Return a number from low to high."""

    def many(self, make: Callable[["Chance"], T], low: int, high: int) -> tuple[T, ...]:
        """Return so many things."""


class Seeded:
    """Chance from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def pick(self, options: Sequence[T]) -> T:
        return self._random.choice(options)

    def number(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def many(self, make: Callable[[Chance], T], low: int, high: int) -> tuple[T, ...]:
        return tuple(make(self) for _ in range(self.number(low, high)))


class Drawn:
    """Chance from hypothesis."""

    def __init__(self, draw: Callable[..., Any]) -> None:
        self._draw = draw

    def pick(self, options: Sequence[T]) -> T:
        return self._draw(st.sampled_from(options))

    def number(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))

    def many(self, make: Callable[[Chance], T], low: int, high: int) -> tuple[T, ...]:
        return tuple(self._draw(st.lists(drawn(make), min_size=low, max_size=high)))


def drawn(make: Callable[[Chance], T]) -> st.SearchStrategy[T]:
    """Return the hypothesis strategy of what a function draws."""
    return st.composite(lambda draw: make(Drawn(draw)))()


def sometimes(chance: Chance, percent: int) -> bool:
    return chance.number(0, 99) >= 100 - percent


FIELDS = ["numbers", "groups", "part", "parts", "amount"]

# What may be wrong with a message that is sent.
FLAWS = ["unknown", "ignored", "undecodable", "keyless", "dataless", "revision", "forged"]

# At an exchange of a consumer with the server.
FAULTS = ["die", "die after", "cut", "cut after", *ENVIRONMENT]


def history(
    chance: Chance,
    *,
    apart: bool = False,
    kills: int = 2,
    kinds: Sequence[str] = FAULTS,
    raised: Sequence[str] = tuple(RAISED),
    failing: bool = False,
) -> History:
    """Draw a component and its history.

    A message that is tried again comes after those of other entities. So handlers fail first, and
    then succeed, only where entities share nothing, or where there is but one.
    """
    partitions = chance.pick([2, 3, 16]) if apart else 1
    made = plan(chance, apart=apart, attempts=kills + 3, raised=raised)
    if failing:
        roles = tuple(_failing_first(chance, role) for role in made.roles)
        made = replace(made, roles=roles)
    things = (
        ["0", "1"][: 1 if failing else 2]
        if not apart
        else [f"{n}{m}" for n in range(len(made.roles)) for m in "012"]
    )
    counter = iter(range(1000))

    def sent(chance: Chance) -> Sent:
        sent = _sent(chance, made, things, next(counter), apart=apart)
        return replace(sent, flaw="") if failing and not apart else sent

    def action(chance: Chance) -> Send | Run | Back:
        what = chance.pick(["send", "run", "run", "back"])
        if what == "back" and not apart:
            return Back(chance.number(1, 6))
        return Send(chance.many(sent, 1, 8)) if what in ("send", "back") else run(chance)

    def run(chance: Chance) -> Run:
        return Run(chance.pick([1000, 1, 2, 3, 7]), chance.many(fault, 0, kills))

    def fault(chance: Chance) -> Fault:
        return Fault(chance.number(0, 2), chance.number(1, 45), chance.pick(kinds))

    first = Send(chance.many(sent, 1, 12))
    actions = (first, *chance.many(action, 0, 4), run(chance), Run())
    return History(made, partitions, actions, impatient=sometimes(chance, 40))


def plan(chance: Chance, *, apart: bool, attempts: int, raised: Sequence[str]) -> Plan:
    """Draw a component."""
    entity = not sometimes(chance, 8)
    commands = list(COMMANDS)[: chance.number(1, len(COMMANDS))]
    roles = tuple(_role(chance, name, raised, entity=entity, apart=apart) for name in commands)
    projectors = {name: _projector(chance) for name in EVENTS} if entity else {}
    every = chance.pick([None, None, 1, 2, 5]) if entity else None
    return Plan(roles, projectors, entity, every, attempts)


def _role(chance: Chance, name: str, raised: Sequence[str], *, entity: bool, apart: bool) -> Role:
    how = chance.pick(["direct", "reserve", "initiate", "reserve"])
    choices = [strategy for strategy in ONCE if entity or strategy not in ("whole", "delta")]
    once = "" if how == "initiate" else chance.pick(choices)
    further = ["other"] if apart else ["other", "entity", "command"]

    def step(chance: Chance) -> Step:
        return _step(chance, further, raised, apart=apart)

    steps = chance.many(step, 0, 4)
    if sometimes(chance, 85):
        steps = (
            *steps,
            Make(chance.pick(list(EVENTS)), chance.pick(["entity", "command", "made"])),
        )
    tail = chance.many(step, 0, 2)
    return Role(
        name,
        how,
        (*steps, *tail),
        once,
        chance.pick(list(KEYS)),
        chance.pick(["thingA", "thingB"]),
        led=apart or not sometimes(chance, 30),
        form=chance.pick(["list", "tuple"]),
        awaited=sometimes(chance, 30),
    )


def _failing_first(chance: Chance, role: Role) -> Role:
    """Let the first calls for each message fail at the end of the program."""
    row = (Row(),) if chance.pick([True, False]) else ()
    failure = Raise("ValueError", chance.pick([1, 1, 2]))
    steps = [step for step in role.steps if not isinstance(step, Raise | Nothing | When)]
    return replace(role, steps=(*row, *steps, failure))


def _step(chance: Chance, further: Sequence[str], raised: Sequence[str], *, apart: bool) -> Step:
    of, field = chance.pick(["entity", "command", "made"]), chance.pick(FIELDS)
    what = chance.number(0, 19)
    if what < 6:
        return Change(of, field, chance.number(0, 3))
    if what < 8:
        return Clear(of, field)
    if what < 10:
        return Place(field, share=chance.pick([True, False]))
    if what < 13:
        source = chance.pick(["entity", "command", "made"])
        return Make(chance.pick(list(EVENTS)), source)
    if what < 16:
        to = chance.pick([*further, "reply"])
        names = ["$"] if apart else ["0", "1", "$"]
        type_ = chance.pick(list(COMMANDS if to == "command" else EVENTS))
        source = chance.pick(["entity", "command", "made"])
        expected = chance.pick([None, None, None, -1]) if to == "other" else None
        return Make(type_, source, to, chance.pick(names), expected)
    if what < 17:
        return When(chance.pick(["entity", "command"]), chance.number(1, 6))
    if what == 17:
        kind = chance.pick(["ValueError", *raised])
        return Raise(kind, chance.pick([None, 1, 2]) if apart else None)
    return chance.pick([Nothing(), Repeat(), Row(), Row()])


def _projector(chance: Chance) -> tuple[Step, ...]:
    places = tuple(
        Place(field, share=chance.pick([True, False])) for field in FIELDS if sometimes(chance, 60)
    )

    def step(chance: Chance) -> Step:
        of, field = chance.pick(["entity", "event"]), chance.pick(FIELDS)
        return Clear(of, field) if sometimes(chance, 40) else Change(of, field, chance.number(0, 3))

    return (*chance.many(step, 0, 1), *places, *chance.many(step, 0, 2))


def _sent(chance: Chance, plan: Plan, things: Sequence[str], n: int, *, apart: bool) -> Sent:
    role = chance.number(0, len(plan.roles) - 1)
    thing = f"{role}{chance.pick('012')}" if apart else chance.pick(things)
    key = f"{thing if apart else ''}k{chance.number(0, 5)}"
    flaw = ""
    if sometimes(chance, 12):
        flaw = chance.pick(FLAWS)
    return Sent(
        n,
        plan.roles[role].command,
        thing,
        key,
        revision=chance.number(0, 9),
        source=chance.pick("st"),
        twist=1 if sometimes(chance, 10) else 0,
        flaw=flaw,
        reply=sometimes(chance, 60),
    )
