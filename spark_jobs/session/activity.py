"""How far Spark is with what it is doing, in numbers."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.shell.progress import ProgressHandler


@dataclass(frozen=True, slots=True)
class Tasks:
    """The tasks of the stages that run at this moment.

    Attributes:
        done: how many have come to their end.
        running: how many run.
        known: how many there are.
    """

    done: int
    running: int
    known: int


class Activity:
    """What a session is doing, as Spark itself follows it."""

    def __init__(self, session: "SparkSession") -> None:
        context = getattr(session, "sparkContext", None)
        self._tracker = None if context is None else context.statusTracker()
        self._told = Tasks(0, 0, 0)
        if self._tracker is None:  # a Connect server tells by itself
            session.registerProgressHandler(cast("ProgressHandler", self._tell))

    def now(self) -> Tasks:
        """Return how far the running stages are."""
        if self._tracker is None:
            return self._told
        stages = [self._tracker.getStageInfo(one) for one in self._tracker.getActiveStageIds()]
        known = [stage for stage in stages if stage is not None]
        return Tasks(
            done=sum(stage.numCompletedTasks for stage in known),
            running=sum(stage.numActiveTasks for stage in known),
            known=sum(stage.numTasks for stage in known),
        )

    # Any: stages of a type that only the client of Connect has
    def _tell(self, stages: Any, inflight_tasks: int, **_: Any) -> None:
        running = [stage for stage in stages or () if not stage.done]
        self._told = Tasks(
            done=sum(stage.num_completed_tasks for stage in running),
            running=inflight_tasks,
            known=sum(stage.num_tasks for stage in running),
        )
