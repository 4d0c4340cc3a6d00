"""Two accounts, one of which has a deposit that cannot be handled, and the consumers of both."""

from bank.invariants import progress
from tests.apps.bank import READS
from tests.apps.poison import APP
from tests.support.controls import COMMANDS, deposit, open_
from tests.support.started import Started

OTHER = "account:command-456"


def letters(connection):
    """Return the letters as (deposit or type, state, reason, attempts), in order."""
    return connection.execute(
        "SELECT coalesce(m.data->>'depositId', l.type), l.state, l.reason, l.attempts "
        "FROM reservation.dead_letters l "
        "LEFT JOIN message_store.messages m USING (global_position) ORDER BY l.global_position"
    ).fetchall()


def drained(connection, started):
    """Wait until the consumers have passed everything."""
    for category in READS:
        while progress(connection)[category][0]:
            started.wait_for("batch_committed", category=category)


def start(database_url, poison, *arguments):
    return Started(database_url, "--app-dir", str(poison.folder), *arguments, app=APP)


def write_two_accounts(store):
    """Write three deposits to one account, the second to be poisoned, and one to another."""
    store.write([open_(), deposit("d1"), deposit("bad"), deposit("d3")], COMMANDS)
    store.write([open_("456"), deposit("e1", account="456")], OTHER)
