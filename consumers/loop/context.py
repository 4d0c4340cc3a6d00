"""The shared context of one consumer's loop, over all of its connections."""

from dataclasses import dataclass, field

from consumers.calls.error_reports import ErrorReports
from consumers.failures.retries import Retries
from consumers.group.membership import Membership
from consumers.loop.retrying.attempts import CountedAttempts
from consumers.loop.retrying.bisection import Bisection
from consumers.loop.retrying.deaths import Deaths
from consumers.loop.retrying.due_letters import DueLetters
from consumers.loop.retrying.letter_retry import Retrying
from consumers.loop.retrying.repeating import RepeatingOnConflict
from consumers.loop.schedule import Schedule
from consumers.options import Options
from consumers.pauses.current import Pauses
from consumers.runtime.in_flight import InFlight
from consumers.runtime.observability.logs import Log
from consumers.runtime.observability.telemetry import Telemetry
from consumers.runtime.running_calls import RunningCalls
from consumers.runtime.session import Session
from reservation.store.notifications import Notices


@dataclass(frozen=True, slots=True)
class LoopContext:
    """One consumer of a component.

    Attributes:
        session: its connections.
        options: how consumers work.
        log: its logger.
        telemetry: what it reports.
        notices: its notices of new messages; None if the store is only polled.
        in_flight: the record of what it has in flight.
        membership: its membership of the group.
        schedule: the time of the next scheduled message of the store.
        pauses: what is paused of it.
        running: its calls of async handlers.
        due: the time of its next look for letters that are due.
        retries: how often a failing message is tried.
        attempts: the attempts that were counted.
        bisection: the size of the next batch.
        repeat_on_conflict: what repeats a transaction that conflicts with others.
        reports: what reports failures to the program.
        deaths: what it takes over from processes that died.
        retrying: what handles letters that are due.
        blocked: the entities whose messages are parked.
    """

    session: Session
    options: Options
    log: Log
    telemetry: Telemetry
    notices: Notices | None
    in_flight: InFlight
    membership: Membership
    schedule: Schedule
    pauses: Pauses
    running: RunningCalls
    due: DueLetters
    retries: Retries
    attempts: CountedAttempts
    bisection: Bisection
    repeat_on_conflict: RepeatingOnConflict
    reports: ErrorReports
    deaths: Deaths
    retrying: Retrying
    blocked: set[str] = field(default_factory=set)

    @property
    def isolates_suspect(self) -> bool:
        """Whether the next message or letter may have ended a process."""
        return self.bisection.one_at_a_time or self.retrying.one_at_a_time
