"""Follow a component: rounds of reconciliation, one after the other, until the process stops."""

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from reservation.errors import DatabaseUnavailableError, ReservationError
from spark_jobs.follow.rounds import Audience, Follower
from spark_jobs.reconcile import Watch, session_of
from spark_jobs.run import Run, judged_by
from spark_jobs.session.failure import reason
from spark_jobs.state import folder as stored_state

# Seconds between the end of a round and the next.
INTERVAL = 10.0


def follow(
    run: Run,
    audience: Audience,
    wait: Callable[[float], bool],
    watch: Watch,
) -> Follower:
    """Follow a component until the process has to stop.

    If the database becomes unavailable, the follower waits for it. After any other failure the
    round is started again; a second failure ends the follower.
    """
    with ExitStack() as opened:
        folder = run.state or Path(
            opened.enter_context(tempfile.TemporaryDirectory(prefix="reservation-follow-"))
        )
        name, declaration = run.component.name, judged_by(run)
        state = opened.enter_context(stored_state.open_state(folder, name, declaration))
        spark = opened.enter_context(session_of(run, watch))
        follower = Follower(run, state, spark, audience)
        audience.began(follower)
        _repeat_rounds(follower, audience, wait)
    return follower


def _repeat_rounds(follower: Follower, audience: Audience, wait: Callable[[float], bool]) -> None:
    """Run rounds until the process has to stop."""
    has_failed = is_away = False
    while not wait(0):
        try:
            follower.round()
        except DatabaseUnavailableError as error:
            if not is_away:
                audience.waits(str(error))
            is_away, has_failed = True, False
        except ReservationError:
            raise
        except Exception as error:
            # Spark was interrupted, or ended together with this process.
            if wait(0):
                break
            if has_failed:
                raise
            audience.waits(f"A round failed: {reason(error)}")
            has_failed = True
        else:
            has_failed = is_away = False
            audience.looked(follower)
        if wait(INTERVAL):
            break
