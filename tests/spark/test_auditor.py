"""What the Spark jobs need is no more than an auditor's rights."""

from tests.apps.bank import drain
from tests.store.builders import as_login, grant, new_role
from tests.support.controls import COMMANDS, deposit, open_
from tests.support.started import run_cli

__all__ = ["new_role"]  # a fixture


def test_an_auditor_reconciles(connection, store, database_url, new_role, tmp_path):
    """`reservation reconcile` and its workers run as an auditor, and keep a state."""
    role = new_role()
    grant(connection, "auditor", role)
    store.write([open_(), deposit(), deposit()], COMMANDS)
    drain(connection)
    env = {"RESERVATION_DATABASE_URL": as_login(connection, database_url, role)}
    done = run_cli("reconcile", "bank:account", "--state", str(tmp_path / "state"), env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert "In order" in done.stdout
