"""An entity is the same whether its events were just returned or are read from the store."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, make_dataclass
from decimal import Decimal
from typing import Annotated, Any

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reservation import Component, Write
from tests.apps.bank import drain

NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
KEYS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=4)
ANY = st.recursive(
    st.none() | st.booleans() | NUMBERS | KEYS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
DECIMALS = st.sampled_from(["1E+2", "1.50e1", "-0.00", "-0", "1e-400", "-1.5E+3", "1e16"])

# The types of fields, and their values.
FIELDS = [
    (Any, ANY),
    (list, st.lists(ANY, max_size=3)),
    (dict[str, str], st.dictionaries(KEYS, KEYS, max_size=4)),
    (float | int, NUMBERS),
    (list[tuple[str, float]], st.lists(st.tuples(KEYS, NUMBERS.map(float)), max_size=2)),
    (Annotated[str, msgspec.Meta(extra={"unhashable": []})], KEYS),
    (Decimal, DECIMALS.map(Decimal)),
]
EVENTS = [make_dataclass(f"Kept{n}", [("value", hint)]) for n, (hint, _) in enumerate(FIELDS)]


@dataclass
class Keep:
    box_id: str
    kind: int


@dataclass
class Look:
    box_id: str


@dataclass
class Box:
    value: Any = None


def boxes(values: list[Any], seen: list[Any]) -> Component[Box]:
    """Return a component that keeps each value in the box of its number, and looks into boxes."""
    box = Component("box", entity=Box, id="box_id")

    @box.handle(Keep, once=None)
    def keep(command: Keep, entity: Box, context: Any) -> Any:
        return EVENTS[command.kind](values[int(command.box_id.partition("x")[0])])

    @box.handle(Look, once=None)
    def look(command: Look, entity: Box, context: Any) -> None:
        seen.append(entity.value)

    for event in EVENTS:

        @box.project(event)
        def kept(entity: Box, event: Any) -> None:
            entity.value = event.value

    return box


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal, with the order of keys and the digits of numbers."""
    if isinstance(one, dict):
        return [*one] == [*other] and same(one.values(), other.values())
    if isinstance(one, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    if isinstance(one, Decimal):
        return one.as_tuple() == other.as_tuple()
    if isinstance(one, Iterable) and not isinstance(one, str):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


DEEPEST: list[Any] = []
for _ in range(400):
    DEEPEST = [DEEPEST]

chosen = st.one_of(*(st.tuples(st.just(kind), values) for kind, (_, values) in enumerate(FIELDS)))
numbers = iter(range(1_000_000))


@settings(max_examples=6)
@given(kept=st.lists(chosen, min_size=1, max_size=30))
@example(kept=[(0, DEEPEST)])
def test_an_event_is_projected_as_it_will_be_read(connection, store, kept):
    """Numbers, the order of keys and signs of zeros are those of the server from the beginning."""
    run = next(numbers)
    seen: list[Any] = []
    component = boxes([value for _, value in kept], seen)
    streams = [f"box:command-{n}x{run}" for n in range(len(kept))]
    ids = [name.partition("-")[2] for name in streams]
    store.write_batch(
        write
        for name, id_, (kind, _) in zip(streams, ids, kept, strict=True)
        for write in (Write(Keep(id_, kind), name), Write(Look(id_), name))
    )
    drain(connection, component)
    store.write_batch(Write(Look(id_), name) for name, id_ in zip(streams, ids, strict=True))
    drain(connection, component)
    assert len(seen) == 2 * len(kept)
    differing = [
        pair for pair in zip(seen[: len(kept)], seen[len(kept) :], strict=True) if not same(*pair)
    ]
    assert differing == []
