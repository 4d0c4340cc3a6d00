"""Two processes that send the ticks of a series, for the explorer.

Claims expire whenever a process looks, as if it had been paused for as long as it takes. So nothing
but the move of the series, and the id of the command, keeps a tick from being sent twice.
"""

from datetime import UTC, datetime
from typing import Any

from psycopg import Connection

from consumers.loop.recurring import RecurringCommands
from consumers.runtime.observability.logs import Log
from reservation import Component, MessageStore
from reservation.store.writing.scheduling import write_due
from tests.apps.nightly import SENT, CloseDay, hotels
from tests.support.explorer import Explorer

YEAR = datetime.now(UTC).year
# Whether no tick is due; an attempt that was begun may be begun again.
LOOK = """
    WITH expired AS (
      UPDATE reservation.series SET attempt_at = 'epoch' WHERE attempted IS NOT NULL
    )
    SELECT reached >= date_trunc('year', now(), 'UTC') FROM reservation.series
"""


class TwoTransactions(RecurringCommands):
    """Sends a tick and moves the series in two transactions, without an id of the tick."""

    def _send(self, connection: Connection[Any], series: Any, command: Any, due: Any) -> bool:
        tick = series.tick(command.tick)
        MessageStore(connection).write(CloseDay("berlin", tick.key), f"{SENT}-berlin")
        connection.execute("UPDATE reservation.series SET reached = %s", [command.tick])
        return True


def ticking(
    database_url: str,
    kind: type[RecurringCommands] = RecurringCommands,
    *,
    missed: str = "latest",
    years: int = 1,
    kills: int = 0,
) -> Explorer:
    """Return the explorer of two processes that send the ticks of so many years."""
    component = hotels(missed=missed)

    def program(connection: Any) -> None:
        while True:
            connection.begin_afresh("look")
            if connection.execute(LOOK).fetchone()[0]:
                break
            _run(component, connection, kind)
        connection.begin_afresh("write")
        write_due(connection)

    def prepare(connection: Connection[Any]) -> None:
        _run(component, connection)
        connection.execute(
            "UPDATE reservation.series SET reached = reached - make_interval(years => %s)", [years]
        )

    def check(connection: Connection[Any]) -> None:
        write_due(connection)
        rest = connection.execute("SELECT count(*) FROM reservation.scheduled").fetchone()
        assert rest == (0,), "a command is left"
        messages = MessageStore(connection).read_category(SENT)
        sent = [message.decode(CloseDay).close_id[6:10] for message in messages]
        first = YEAR if missed == "latest" else YEAR - years + 1
        assert sent == [str(year) for year in range(first, YEAR + 1)], f"sent: {sent}"

    names = ("hotel", "hotel")
    return Explorer(database_url, names, (program, program), prepare, check, kills)


def _run(component: Component, connection: Connection[Any], kind: type = RecurringCommands) -> None:
    recurring(component, kind).run(connection)


def recurring(component: Component, kind: type = RecurringCommands) -> RecurringCommands:
    """Return what sends a component's recurring commands in a consumer."""
    return kind(component, SENT, Log("hotel", SENT), lambda: None)
