"""The messages and the entity of drawn components, with every kind of field that can be shared."""

from dataclasses import dataclass, field


@dataclass
class Part:
    name: str = ""
    numbers: list[int] = field(default_factory=list)


@dataclass
class Thing:
    """The entity. Its fields are named as those of the messages, so that values can be shared."""

    amount: int = 0
    numbers: list[int] = field(default_factory=list)
    groups: dict[str, list[int]] = field(default_factory=dict)
    part: Part = field(default_factory=Part)
    parts: list[Part] = field(default_factory=list)


@dataclass(slots=True)
class Alpha:
    thing_id: str
    key: str
    number: int = 0
    revision: int = 0
    source: str = "s"
    sent: int = 0
    amount: int = 0
    numbers: list[int] = field(default_factory=list)
    groups: dict[str, list[int]] = field(default_factory=dict)
    part: Part = field(default_factory=Part)


@dataclass(frozen=True)
class Beta:
    thing_id: str
    key: str
    number: int = 0
    revision: int = 0
    source: str = "s"
    sent: int = 0
    amount: int = 0
    numbers: list[int] = field(default_factory=list)
    groups: dict[str, list[int]] = field(default_factory=dict)
    part: Part = field(default_factory=Part)


@dataclass
class Gamma(Alpha):
    pass


@dataclass(frozen=True)
class Delta(Beta):
    pass


@dataclass(frozen=True)
class Plain:
    """An event of values that cannot change."""

    thing_id: str
    amount: int = 0


@dataclass
class Rich:
    """An event of values that can, each of which may be shared."""

    thing_id: str
    amount: int = 0
    numbers: list[int] = field(default_factory=list)
    groups: dict[str, list[int]] = field(default_factory=dict)
    part: Part = field(default_factory=Part)
    parts: list[Part] = field(default_factory=list)


@dataclass(frozen=True)
class Sealed:
    """A frozen event around values that are not."""

    thing_id: str
    numbers: list[int] = field(default_factory=list)
    part: Part | None = None


COMMANDS = {class_.__name__: class_ for class_ in (Alpha, Beta, Gamma, Delta)}
EVENTS = {class_.__name__: class_ for class_ in (Plain, Rich, Sealed)}
