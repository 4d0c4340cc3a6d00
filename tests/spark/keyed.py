"""Components whose keys are texts, numbers, fields with a default, and what a function says."""

from dataclasses import dataclass
from typing import Any

from reservation import Component, Key


@dataclass
class Named:
    thing_id: str
    key: str


@dataclass
class Counted:
    thing_id: str
    key: int


@dataclass
class Parted:
    thing_id: str
    key: str
    part: int = 1


@dataclass
class Lowered:
    thing_id: str
    key: str

    def __post_init__(self) -> None:
        self.key = self.key.lower()


keyed = Component("thing", id="thing_id")
folding = Component("thing", id="thing_id")
for _made, _command, _key in (
    (keyed, Named, "key"),
    (keyed, Counted, "key"),
    (keyed, Parted, ["key", "part"]),
    (folding, Named, lambda command: (command.key.upper(), "x") if command.key != "-" else None),
    (folding, Lowered, "key"),
):
    into = _command.__name__.lower()
    _made.handle(_command, key=Key(_key, into=into, per=None))(lambda *_: None)


@dataclass
class Send:
    thing_id: str
    key: str
    at: str = ""
    of: Any = None


sending = Component("thing", id="thing_id")
sending.handle(Send, key=Key("key", into="sent", per=None, ignoring="at"))(lambda *_: None)


@dataclass
class Deposit:
    a_id: str
    key: str


@dataclass
class Move:
    a_id: str
    by: int


def changing(*, later: bool) -> Component:
    """Return a component before and after its keys were changed, with a category that is odd."""
    made, into = Component("007", id="a_id"), "b/c=%20 ü<i>"
    made.message(Deposit, former_names="Put" if later else ())
    by_key = Key("key", into=into, per=None, shared=True, ignoring=("key",) if later else ())
    made.handle(Deposit, key=by_key)(lambda *_: None)
    by = ["by", "a_id"] if later else lambda command: command.by
    made.handle(Move, key=Key(by, into=into, per=None, shared=True))(lambda *_: None)
    return made


former, later = changing(later=False), changing(later=True)
