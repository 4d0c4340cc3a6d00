"""The work of each process of a host."""

from collections.abc import Callable
from dataclasses import dataclass, field

from consumers.archived import Archives
from consumers.group.inspection.stored_positions import ConsumerId
from consumers.options import Options

# Seconds that a process may take to stop, where nothing is said.
STOP_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Assignment:
    """The work of a process; each of a host's does the same.

    Attributes:
        apps: the app paths of the components.
        app_dir: the folder that they start from.
        consumer_ids: the consumers, each by its component's name and its category.
        database_url: the store's address; empty for libpq's own defaults.
        options: how the consumers work.
        archives: opens the archives that they read too, in each process; None without any.
    """

    apps: tuple[str, ...]
    app_dir: str
    consumer_ids: tuple[ConsumerId, ...]
    database_url: str = field(repr=False)
    options: Options = field(default_factory=Options)
    archives: Callable[[], Archives] | None = None

    @property
    def grace(self) -> float:
        """The seconds that a process may take to stop."""
        return STOP_SECONDS if self.options.grace is None else self.options.grace
