"""Waiting where a category ends, until there is notice of new messages, or for a while."""

from typing import Any

from psycopg import Connection

from consumers.group.membership import REBALANCE_INTERVAL, Membership
from consumers.loop.ongoing_calls import OngoingCalls
from consumers.loop.recurring import RecurringCommands
from consumers.loop.retrying.due_letters import DueLetters
from consumers.loop.schedule import Schedule
from consumers.pauses.current import INTERVAL, Pauses
from consumers.runtime.observability.logs import Log
from consumers.runtime.stopping import Stop
from reservation.store.notifications import Notices

# Seconds until the second look at a category that has nothing new, where no notice is given. Each
# further wait is twice as long, up to the interval of rebalances.
POLL = 0.1


class Waiting:
    """The waits of one consumer, in which its async calls go on."""

    def __init__(
        self,
        log: Log,
        notices: Notices | None,
        membership: Membership,
        schedule: Schedule,
        recurring: RecurringCommands,
        due: DueLetters,
        calls: OngoingCalls,
        pauses: Pauses,
    ) -> None:
        self._log = log
        self._notices = notices
        self._membership = membership
        self._schedule = schedule
        self._recurring = recurring
        self._due = due
        self._calls = calls
        self._pauses = pauses
        self._awaits_notices = False
        self._poll = POLL

    def moved(self) -> None:
        """Note that there were messages."""
        self._poll = POLL

    # Any: rows of different types.
    def wait(self, connection: Connection[Any], stop: Stop) -> bool:
        """Wait; return whether there may be new messages."""
        until_rebalance = self._membership.pause
        if self._pauses.stops_consumer:
            self._wait_paused(connection, stop)
            return False
        poll = min(self._poll, until_rebalance)
        self._poll = min(self._poll * 2, REBALANCE_INTERVAL)
        notices, until_due = self._notices, self._recurring.limit(self._due.seconds)
        pause = self._calls.pause(connection, stop)
        if notices is None or not self._membership.positions.partitions:
            pause.wait(min(self._schedule.limit(poll), until_due))
            return False
        longest, poll = self._schedule.limit(until_rebalance), self._schedule.limit(poll)
        noticed = notices.wait(min(longest, until_due), poll=min(poll, until_due), pause=pause)
        if notices.scheduled:
            notices.scheduled = False
            self._schedule.add(0)  # the next write tells when it is due
        if notices.missing is None and not notices.pauses:
            self._pauses.none_since()
        if self._awaits_notices != (notices.missing is None):
            self._awaits_notices = notices.missing is None
            if self._awaits_notices:
                self._log.info("notice_awaited")
            else:
                self._log.info("notice_missing", reason=notices.missing)
        return noticed

    # Any: rows of different types.
    def _wait_paused(self, connection: Connection[Any], stop: Stop) -> None:
        """Wait while nothing is to be handled, until it is time to look whether that is over."""
        if self._notices is not None:
            self._notices.leave()
        longest = self._schedule.limit(min(INTERVAL, self._membership.pause))
        self._calls.pause(connection, stop).wait(self._recurring.limit(longest))
