"""Following a store round by round: what persists is reported once, and once when it ends."""

from contextlib import closing
from datetime import timedelta

import pytest
from psycopg import connect

from bank import account
from spark_jobs.run import Run
from tests.apps.bank import drain
from tests.apps.changing import raw
from tests.apps.shops import former, now
from tests.spark.builders import ROOT, Rounds, anything_told, head, insert
from tests.support.controls import COMMANDS, deposit, open_
from tests.support.message_db import imitate
from tests.support.started import EXAMPLES
from tests.support.stored_positions import store_position


@pytest.fixture
def follow(spark, database_url, tmp_path):
    """Give a function that does rounds, with steps between them, and returns them."""

    def go(*between, grace=timedelta(), component=account, app="bank:account", app_dir=EXAMPLES):
        state = tmp_path / "state"
        run = Run(component, app, app_dir, database_url, grace=grace, state=state)
        return Rounds(run, *between).go()

    return go


def orphan(store, name):
    """Write a reservation without a command."""
    store.write(deposit(name), f"accountTransaction-123+{name}")


def test_a_lasting_violation_is_reported_once_and_once_more_when_it_ends(follow, store, connection):
    """A violation is reported after the grace; one that ends earlier never is."""
    store.write([open_(), deposit("d1")], COMMANDS)
    drain(connection)
    read, grace = head(connection), timedelta(milliseconds=100)
    store.write([deposit("lost"), deposit("brief")], COMMANDS)
    store_position(connection, "account", "account:command", head(connection))

    def end_early(rounds):
        store.write(deposit("brief"), "accountTransaction-123+brief")

    def end(rounds):
        store_position(connection, "account", "account:command", read)
        drain(connection)

    rounds = follow(end_early, anything_told, end, grace=grace)
    assert rounds.findings == [(False, "missing"), (True, "missing")]
    reported, mended = rounds.told
    assert reported.time - reported.since >= grace
    assert reported.violation.id == mended.violation.id
    assert rounds.follower.standing == {}
    assert (rounds.follower.reported, rounds.follower.mended) == (1, 1)


def test_lines_are_in_the_order_of_the_log_and_name_what_differs(follow, store, connection):
    """What is settled comes after what is new."""
    store.write([open_(), deposit("d1"), deposit("d1", amount="99")], COMMANDS)
    drain(connection)
    orphan(store, "o1")
    orphan(store, "o2")

    def change(rounds):
        store.write(deposit("o1"), COMMANDS)
        orphan(store, "o3")

    rounds = follow(change)
    first_round, second_round = rounds.findings[:3], rounds.findings[3:]
    assert first_round == [(False, "conflict"), (False, "orphan"), (False, "orphan")]
    assert second_round == [(False, "orphan"), (True, "orphan")]
    conflict, first, second, _, settled = (event.violation for event in rounds.told)
    assert first.global_position < second.global_position
    assert settled == first
    assert [(one.what, one.field) for one in conflict.differences] == [("field", "amount")]


def test_a_restart_goes_on_with_what_was_seen_and_reported(
    follow, store, connection, reconcile, tmp_path
):
    """The grace goes on, nothing is reported twice, and a run goes on with the same state."""
    store.write([open_(), deposit("d1")], COMMANDS)
    drain(connection)
    orphan(store, "o1")
    grace = timedelta(milliseconds=100)
    seen = follow(grace=grace)
    assert seen.told == []
    first = follow(anything_told, grace=grace)
    assert first.findings == [(False, "orphan")]
    orphan(store, "o2")
    again = follow()
    assert [event.violation.key_stream for event in again.told] == ["accountTransaction-123+o2"]
    assert again.follower.standing == {"orphan": 2}
    assert reconcile("--state", tmp_path / "state").commands["orphans"] == 2


def test_a_round_that_dies_is_repeated_as_a_whole(follow, store, connection):
    """What it had read counts once, and what it was about to report is reported."""
    store.write([open_(), deposit("d1")], COMMANDS)
    orphan(store, "o1")
    follow(grace=timedelta(hours=1))
    store.write([deposit("d2"), deposit("d2")], COMMANDS)

    with pytest.MonkeyPatch.context() as patched:

        def die(self, event):
            raise KeyboardInterrupt

        patched.setattr(Rounds, "happened", die)
        with pytest.raises(KeyboardInterrupt):
            follow()
    rounds = follow()
    assert rounds.findings == [(False, "orphan")]
    assert rounds.follower.standing == {"orphan": 1}
    counted = rounds.follower.report.categories[0]
    assert (counted.commands, counted.duplicates, counted.orphans) == (3, 1, 1)


def test_a_late_commit_is_found_once(follow, store, connection, database_url):
    """A message that becomes visible behind what was read is judged in the next round."""
    store.write([open_(), deposit("d1")], COMMANDS)
    with closing(connect(database_url)) as slow:
        # Not as our clients write: without the lock of the category.
        slow.execute(
            "INSERT INTO message_store.messages (stream_name, position, type, data, metadata) "
            "VALUES ('accountTransaction-123+late', 0, 'Deposit', "
            """'{"accountId": "123", "depositId": "d1", "amount": 99}', '{}')"""
        )
        store.write(deposit("d2"), COMMANDS)
        drain(connection)
        rounds = follow(lambda rounds: slow.commit(), anything_told, lambda rounds: None)
    assert sorted(rounds.findings) == [(False, "orphan"), (False, "unhandled")]


def test_an_accepted_violation_stands_no_longer(follow, store, command, connection):
    """One that is reopened is reported again."""
    store.write([open_(), deposit()], COMMANDS)
    drain(connection)
    orphan(store, "o1")

    def accept(rounds):
        (event,) = rounds.told
        done = command("findings", "accept", event.violation.id, "--reason", "looked at")
        assert done.returncode == 0, done.stderr

    def reopen(rounds):
        assert rounds.follower.standing == {}
        assert command("findings", "reopen", rounds.told[0].violation.id).returncode == 0

    rounds = follow(anything_told, accept, reopen)
    assert [(event.is_mended, event.is_accepted) for event in rounds.told] == [
        (False, False),
        (True, True),
        (False, False),
    ]
    assert rounds.follower.standing == {"orphan": 1}


def test_another_declaration_judges_anew_and_tells_what_has_changed(follow, connection):
    """A conflict that is none any more is mended; what was reported already is not again."""
    pay = {"shopId": "1", "payId": "a"}
    for data in (pay, pay | {"currency": "EUR"}, pay | {"currency": "GBP"}):
        raw(connection, "till:command-1", "Pay", data)
    raw(connection, "tillTransaction-a", "Pay", pay)
    options = {"app_dir": ROOT}
    first = follow(component=former, app="tests.apps.shops:former", **options)
    assert first.findings == [(False, "conflict")] * 2
    then = follow(component=now, app="tests.apps.shops:now", **options)
    assert then.findings == [(True, "conflict")]
    assert then.follower.standing == {"conflict": 1}


def test_without_a_position_a_message_is_missing_since_it_was_stored(follow, spark_database):
    """Where its age has decided that it was read, the grace is over with the verdict."""
    with connect(spark_database.renew(is_empty=True), autocommit=True) as connection:
        imitate(connection)
        insert(connection, COMMANDS, "Deposit", {"depositId": "d1", "accountId": "123"})
        connection.execute("UPDATE message_store.messages SET time = '2026-01-01'")
        rounds = follow(grace=timedelta(days=1))
    assert rounds.findings == [(False, "missing")]
    assert rounds.told[0].since.isoformat() == "2026-01-01T00:00:00+00:00"
