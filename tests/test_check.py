"""What ``reservation check`` finds in stores that were made wrong, and that it finds nothing else."""

from tests.bank import drain
from tests.commands import invoke_cli
from tests.controls import COMMANDS, deposit, open_, withdraw


def test_a_store_in_order_is_in_order(connection, store, database_url):
    store.write([open_(), deposit(), withdraw()], COMMANDS)
    drain(connection)
    done = invoke_cli("check", "bank:account", env={"RESERVATION_DATABASE_URL": database_url})
    print(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
