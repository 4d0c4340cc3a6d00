"""Sending to the server, and taking its results, in libpq's pipeline mode.

psycopg waits for what the generators yield.
"""

from collections.abc import Callable, Sequence

import psycopg
from psycopg.abc import PQGen
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import Ready, Wait

AS_EXPECTED = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)


def send_up_to_sync(pgconn: PGconn) -> PQGen[None]:
    """End what was put with a synchronization, and send it all."""
    pgconn.pipeline_sync()
    while pgconn.flush():
        if (yield Wait.RW) & Ready.R:  # what the server sends meanwhile is taken in
            pgconn.consume_input()


def results_up_to_sync(
    pgconn: PGconn, answered: Callable[[], None] | None = None
) -> PQGen[list[PGresult]]:
    """Take the results of what was sent up to a synchronization; report it when some come."""
    results: list[PGresult] = []
    while True:
        while pgconn.is_busy():
            yield Wait.R
            try:
                pgconn.consume_input()
            except psycopg.OperationalError:
                check_results(results)
                raise
            if answered is not None:
                answered()
        result = pgconn.get_result()
        if result is None:  # between those of two statements
            if pgconn.status == ConnStatus.BAD:
                check_results(results)
                raise psycopg.OperationalError("the connection is lost")
        elif result.status == ExecStatus.PIPELINE_SYNC:
            return results
        else:
            results.append(result)


def check_results(results: Sequence[PGresult]) -> None:
    """Raise the first error among results."""
    for result in results:
        if result.status not in AS_EXPECTED:
            raise error_from_result(result)
