"""A store that is cleared under running processes."""

from tests.apps.bank import broken, drain, event_types
from tests.support.commands import invoke_cli
from tests.support.controls import COMMANDS as STREAM
from tests.support.controls import deposit, open_
from tests.support.started import PATIENCE
from tests.support.watching import Watched, until


def test_running_processes_stop_where_the_store_is_cleared(connection, store, database_url):
    """They end with one line that names what to run, mix no logs, and are not ready meanwhile."""
    store.write([open_(), *(deposit(f"old{n}", "1") for n in range(3))], STREAM)
    drain(connection)
    with Watched(database_url) as watched:
        watched.ready()
        with connection.transaction():
            connection.execute("TRUNCATE message_store.messages RESTART IDENTITY")
            store.write([open_(), *(deposit(f"new{n}", "1") for n in range(299))], STREAM)
        heard = []

        def ended():
            try:
                heard.append(watched.ask("/readyz"))
            except OSError:  # refused, or reset between the request and the answer
                return True
            return heard[-1][0] != 200

        until(ended)
        assert watched.process.wait(PATIENCE) == 2
        line = watched.log.strip().splitlines()[-1]
    assert "not in this store" in line
    assert "`reservation positions reset bank:account`" in line
    assert all(status == 503 for status, text in heard if text != "ok\n")
    assert event_types(store) == []
    reset = invoke_cli(
        "positions", "reset", "bank:account", "--yes", "--database-url", database_url
    )
    assert reset.returncode == 0, reset.stderr
    drain(connection)
    assert event_types(store).count("Deposited") == 299
    assert broken(connection) == {}
