"""What is collected for a batch, which messages become dead letters, and which wait behind them."""

import uuid

import pytest

from consumers.dead_letters.failure import Failure, Reason
from consumers.decisions.blocking import ALL_OR_NOTHING, Blocking, FailurePolicy, blocking
from consumers.decisions.decisions import Decisions
from consumers.decisions.pending_outputs import PendingOutputs
from reservation import ReserveOutcome
from reservation.errors import DecodeError, HandlerError
from reservation.store.writing.write import Row
from tests.controls import deposit, stored

MESSAGE = stored(deposit())
DIED = Failure(Reason.PROCESS_DIED, "The process ended")


def row(stream_name):
    return Row(uuid.uuid4(), stream_name, "Deposited", "{}", None, None)


@pytest.mark.parametrize("outcome", [ReserveOutcome.RESERVED, ReserveOutcome.DUPLICATE])
def test_an_outcome_is_counted(outcome):
    """An outcome is counted under its name and has no other consequence."""
    decisions = Decisions()
    decisions.add_outcome(MESSAGE, "sales-1", outcome)
    assert decisions.counts == {outcome.value: 1}
    assert (decisions.conflicts, decisions.letters) == ([], [])


def test_a_conflict_is_a_dead_letter_that_blocks_nobody():
    """A conflict blocks nothing, because the first command of its key has taken effect."""
    decisions = Decisions()
    decisions.add_outcome(MESSAGE, "sales-1", ReserveOutcome.CONFLICT)
    (letter,) = decisions.letters
    assert decisions.counts == {"conflict": 1}
    assert decisions.conflicts == [(MESSAGE, "sales-1")]
    assert (letter.entity, letter.failure.reason, letter.attempts) == (None, Reason.CONFLICT, 1)


def test_the_categories_of_all_that_is_written_are_locked_once_each():
    """Each category of events, reservations and two-phase outputs is locked once."""
    decisions = Decisions(
        writes=[row("account-1"), row("account-2"), row("audit-1")],
        reservations=[(MESSAGE, "sales-1")],
        pending=PendingOutputs(check=None, rows=[row("board-1"), row("account-3")]),
    )
    assert sorted(decisions.categories) == ["account", "audit", "board", "sales"]


def test_a_failure_blocks_its_entity():
    """After a failure later messages of the entity are parked, and others go on."""
    decisions = Decisions()
    batch = Blocking(FailurePolicy(), decisions)
    assert not batch.anything_blocked
    batch.fails(MESSAGE, "account-1", DecodeError("no"))
    assert batch.anything_blocked
    assert batch.takes(stored(deposit("d2"), global_position=2), "account-1")
    assert not batch.takes(stored(deposit("d3"), global_position=3), "account-2")
    assert [letter.failure.reason for letter in decisions.letters] == [
        Reason.UNDECODABLE,
        Reason.PARKED,
    ]
    assert decisions.counts == {"dead": 1, "parked": 1}


def test_a_failure_without_an_entity_blocks_nobody():
    """A failed message whose entity is unknown blocks nothing."""
    batch = Blocking(FailurePolicy(), Decisions())
    batch.fails(MESSAGE, None, DecodeError("no"))
    assert not batch.anything_blocked


def test_an_entity_that_is_blocked_already_stays_so():
    """A failing message of a blocked entity is parked: it was not its turn."""
    decisions = Decisions()
    batch = Blocking(FailurePolicy(blocked={"account-1"}), decisions)
    batch.fails(MESSAGE, "account-1", DecodeError("no"))
    assert [letter.parked for letter in decisions.letters] == [True]


@pytest.mark.parametrize(
    ("policy", "error"),
    [(FailurePolicy(), HandlerError("no")), (ALL_OR_NOTHING, DecodeError("no"))],
    ids=["another attempt may succeed", "the policy is to stop"],
)
def test_an_error_is_raised_rather_than_passed(policy, error):
    """An error that the policy does not absorb is raised, and no letter is written."""
    decisions = Decisions()
    with pytest.raises(type(error)):
        Blocking(policy, decisions).fails(MESSAGE, "account-1", error)
    assert decisions.letters == []


def test_a_message_that_was_given_up_is_a_dead_letter():
    """A message that was given up is a dead letter with its attempts and blocks its entity."""
    decisions = Decisions()
    batch = Blocking(FailurePolicy(given_up={1: (DIED, 3)}), decisions)
    assert batch.takes(MESSAGE, "account-1")
    (letter,) = decisions.letters
    assert (letter.failure, letter.attempts, letter.entity) == (DIED, 3, "account-1")
    assert batch.takes(stored(deposit("d2"), global_position=2), "account-1")


def test_a_policy_gives_up_for_its_reason_only():
    """A policy gives up a message for its own reason only."""
    policy = FailurePolicy(given_up={1: (DIED, 3)})
    assert policy.gives_up(MESSAGE, Reason.PROCESS_DIED)
    assert not policy.gives_up(MESSAGE, Reason.KEY)
    assert not policy.gives_up(stored(deposit(), global_position=2), Reason.PROCESS_DIED)


def test_the_name_of_a_blocked_entity_fits_an_index():
    """Long names of blocked entities are shortened to fit an index and stay different."""
    assert blocking("account-1") == "account-1"
    long = ["account-" + "x" * 2000 + end for end in "ab"]
    assert len({blocking(name) for name in long}) == 2
    assert all(len(blocking(name).encode()) < 200 for name in long)
