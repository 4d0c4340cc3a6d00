"""A component's reconciliation that goes on: rounds, one after the other, until it is to stop."""

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from pyspark.sql import SparkSession

from reservation.errors import DatabaseUnavailableError, ReservationError
from spark_jobs.follow.rounds import Audience, Follower
from spark_jobs.reconciliation import stored_state
from spark_jobs.reconciliation.run import Run, judged_by
from spark_jobs.session.failure import reason
from spark_jobs.session.session import spark_session
from spark_jobs.snapshot.snapshot import exported_snapshot

# Between the end of a round and the next, in seconds.
INTERVAL = 10.0


def follow(
    run: Run,
    audience: Audience,
    wait: Callable[[float], bool],
    watch: Callable[[SparkSession], AbstractContextManager[None]],
) -> Follower:
    """Follow a component until it is time to stop.

    A database that goes away is waited for. Another failure is told and the round begun again; if
    that fails too, it is the end.

    Args:
        run: what is to be done; without a state it is kept in a temporary folder.
        audience: who is told.
        wait: waits for so many seconds at most; tells whether it is time to stop.
        watch: what is entered with the session while it works.

    Returns:
        What followed, which still tells what stands.

    Raises:
        DatabaseUnavailableError: the database cannot be reached at the beginning.
        SchemaError: it holds no message store.
        SparkUnavailableError: Spark or Java is missing or too old, or there is no such master.
        SparkSettingError: a property cannot be passed on.
        StateError: the state cannot be gone on from.
        SparkJobError: a round failed twice.
    """
    with ExitStack() as opened:
        with exported_snapshot(run.database_url) as snapshot:
            # What is not there is told before Java starts.
            size = snapshot.size()
        folder = run.state or Path(
            opened.enter_context(tempfile.TemporaryDirectory(prefix="reservation-follow-"))
        )
        name, declaration = run.component.name, judged_by(run)
        state = opened.enter_context(stored_state.opened(folder, name, declaration))
        spark = opened.enter_context(
            spark_session(
                run.database_url,
                master=run.master,
                conf=run.conf,
                app=run.app,
                app_dir=run.app_dir,
                size=size,
            )
        )
        opened.enter_context(watch(spark))
        follower = Follower(run, state, spark, audience)
        audience.began(follower)
        _go_on(follower, audience, wait)
    return follower


def _go_on(follower: Follower, audience: Audience, wait: Callable[[float], bool]) -> None:
    """Begin rounds until it is time to stop."""
    has_failed = is_away = False
    while not wait(0):
        try:
            follower.round(follower.look())
        except DatabaseUnavailableError as error:
            if not is_away:
                audience.waits(str(error))
            is_away, has_failed = True, False
        except ReservationError:
            raise
        except Exception as error:
            # Told to stop, Spark was interrupted, or ended by who wants this process to end.
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
