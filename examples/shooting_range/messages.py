"""What is said to the shooting range, and what it says."""

from dataclasses import dataclass


@dataclass(frozen=True)
class MoveTarget:
    game_id: str
    position: int


@dataclass(frozen=True)
class FireAt:
    game_id: str
    position: int


@dataclass(frozen=True)
class Hit:
    shot_id: str
    game_id: str


@dataclass(frozen=True)
class Missed:
    shot_id: str
    game_id: str
