"""Late commits behind an archive, which the oracle judges in a sample."""

from contextlib import closing

from psycopg import connect

from tests.apps.bank import RESERVED, drain
from tests.spark.builders import age
from tests.support.controls import COMMANDS, deposit, open_

OLD = "2026-02-28"


def test_late_commits_behind_an_archive_are_judged(
    store, connection, database_url, archive, prune, reconcile, tmp_path
):
    """A late commit behind the archived messages is judged, with a state and without."""
    state, with_archive = ("--state", tmp_path / "state"), ("--archive", tmp_path / "archive")
    store.write([open_(), deposit("d1")], COMMANDS)
    with closing(connect(database_url)) as slow:
        for stream in (COMMANDS, f"{RESERVED}-123+late", "account-123"):
            slow.execute(
                "INSERT INTO message_store.messages (stream_name, position, type, data, metadata) "
                """VALUES (%s, 90, 'Deposit', '{"accountId": "123", "depositId": "d1", """
                """"amount": 99}', '{}')""",
                [stream],
            )
        store.write([deposit("d2"), deposit("d3")], COMMANDS)
        drain(connection)
        age(connection, OLD)
        assert all(archive().added)
        before = reconcile(*state, *with_archive)
        slow.commit()
    alone = reconcile()
    assert {*alone.found} >= {"conflict", "orphan"}
    assert reconcile(*with_archive) == alone != before
    assert prune()[0] == 0
    assert reconcile(*with_archive) == alone
    assert reconcile(*state, *with_archive) == alone
