"""Runs in which the log is cleared beneath the consumers' positions, as Message DB's tool does."""

import dataclasses
import tempfile
from pathlib import Path

from reservation.errors import ReservationError
from tests.reference.drawing import Seeded, history
from tests.reference.histories import History, Run, Send
from tests.reference.world import broken, send
from tests.soak.chaos.alone import Alone
from tests.soak.chaos.app import write_app
from tests.support.started import run_cli


class Replaced(Alone):
    """The consumers stop, positions are reset as the pages say, and they go on with the new log."""

    def draw(self, seed: int) -> None:
        """Draw what happens before; after that, the same is sent once more as other messages."""
        self.history = history(Seeded(seed), kills=0)
        sent = [
            m
            for action in self.history.actions
            if isinstance(action, Send)
            for m in action.messages
        ]
        again = tuple(dataclasses.replace(message, n=message.n + 1000) for message in sent)
        self.after = History(self.history.plan, 1, (Send(again), Run()))

    def play(self) -> list[str]:
        """Play both; return the violations."""
        world = self.played
        if found := super().play():
            return found
        world.control.execute(
            "TRUNCATE message_store.messages RESTART IDENTITY; DELETE FROM chaos_rows"
        )
        send(world.control, self.after.actions[0].messages)
        found = [
            f"the consumer of {category} took the log for the one that it knew"
            for category in self.history.plan.categories
            if self._position(category) and self._begins(category)
        ]
        self._reset()
        world.play(self.after)
        return [*found, *broken(world.control), *world.differences(self.after)]

    def _position(self, category: str) -> int:
        (position,) = self.played.control.execute(
            "SELECT coalesce(max(position), 0) FROM reservation.positions WHERE category = %s",
            [category],
        ).fetchall()[0]
        return int(position)

    def _begins(self, category: str) -> bool:
        try:
            self.played.drain(category, 1000, {}, 1)
        except ReservationError:
            return False
        return True

    def _reset(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            app = write_app(Path(folder), self.history.plan)
            reset = ["positions", "reset", app, "--app-dir", folder, "--forget", "--yes"]
            ended = run_cli(*reset, env={"RESERVATION_DATABASE_URL": self.played.owner})
            assert ended.returncode == 0, ended.stderr
