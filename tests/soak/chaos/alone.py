"""Runs within this process: the real consumers, and faults at chosen exchanges with the server."""

from typing import TYPE_CHECKING

from tests.reference.drawing import Seeded, history
from tests.reference.world import World, broken

if TYPE_CHECKING:
    from tests.soak.chaos.stores import Stores


class Alone:
    """One consumer of each category, in turns, so that all is determined."""

    def __init__(self, stores: "Stores", seed: int) -> None:
        self.draw(seed)
        self.played = self.world(stores)
        self.address = self.played.owner

    def draw(self, seed: int) -> None:
        """Draw what happens."""
        self.history = history(Seeded(seed))

    def world(self, stores: "Stores") -> World:
        """Return where it happens."""
        return World(stores.shared())

    def play(self) -> list[str]:
        """Play it; return the violations."""
        self.played.play(self.history)
        return [*broken(self.played.control), *self.played.differences(self.history)]

    def describe(self) -> str:
        """Return a readable description of what the seed repeats."""
        parts = [*self.history.plan.roles, *self.history.plan.projectors.items()]
        return "\n".join(map(repr, [*parts, self.history, *self.history.actions])) + "\n"

    def log(self) -> str:
        """Return the log of other processes."""
        return ""

    def close(self) -> None:
        """Leave nothing behind."""
        self.played.close()


class Failing(Alone):
    """Handlers fail first after what they, and those before them in the batch, have done.

    Half of them have used the connection, and most have made events.
    """

    def draw(self, seed: int) -> None:
        self.history = history(Seeded(seed), failing=True)


class FailingApart(Alone):
    """The same in partitions."""

    def draw(self, seed: int) -> None:
        self.history = history(Seeded(seed), apart=True, failing=True)


class Apart(Alone):
    """Categories with partitions, whose entities share nothing."""

    def draw(self, seed: int) -> None:
        self.history = history(Seeded(seed), apart=True)
