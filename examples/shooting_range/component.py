"""The shooting range and its leader board: two components whose states are kept in versions."""

from dataclasses import dataclass

from reservation import Component, Context
from reservation.strategies import StateBased
from shooting_range.messages import FireAt, Hit, Missed, MoveTarget

ATTEMPTS = 2  # shots until the target moves
POSITIONS = 100


@dataclass
class ShootingRange:
    """Where the target is, and how many shots have been fired at it there."""

    target_position: int = 0
    attempts: int = 0

    def move(self, position: int) -> None:
        self.target_position, self.attempts = position, 0


@dataclass
class LeaderBoard:
    """How often a game's target was hit and missed."""

    hits: int = 0
    misses: int = 0


shooting_range = Component("shootingRange", entity=ShootingRange, id="game_id")
leader_board = Component("leaderBoard", entity=LeaderBoard, id="game_id")

once = StateBased()
once_in_deltas = StateBased(state="delta")


@shooting_range.handle(MoveTarget, once=once)
def move_target(command: MoveTarget, target: ShootingRange, context: Context) -> None:
    """Begin a round with the target where the command says."""
    target.move(command.position)


@shooting_range.handle(FireAt, once=once)
def fire_at(command: FireAt, target: ShootingRange, context: Context) -> Hit | Missed:
    """Tell whether the target was hit, and move it by chance after so many shots."""
    outcome = Hit if target.target_position == command.position else Missed
    told = outcome(str(context.id("shot")), command.game_id)
    context.write(told, f"leaderBoard:command-{command.game_id}")
    target.attempts += 1
    if target.attempts == ATTEMPTS:
        target.move(context.random.randrange(POSITIONS))
    return told


@leader_board.handle(Hit, once=once_in_deltas)
def count_hit(event: Hit, board: LeaderBoard, context: Context) -> None:
    """Count a hit."""
    board.hits += 1


@leader_board.handle(Missed, once=once_in_deltas)
def count_miss(event: Missed, board: LeaderBoard, context: Context) -> None:
    """Count a miss."""
    board.misses += 1
