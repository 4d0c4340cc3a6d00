"""Commands of one key are compared by what they mean today, as the consumers do it.

The paths of a run and the SQL of `test_oracle.py` have renamed and reshaped commands too.
"""

import dataclasses
import json
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

import pytest

from consumers.correcting.correct import correct
from consumers.dead_letters import administration
from consumers.dead_letters.stored_letters import Selection
from consumers.decisions.blocking import FailurePolicy
from reservation.messages.comparison import same_content
from spark_jobs.analysis.verdicts import meaning
from spark_jobs.common.errors import StateError
from spark_jobs.reconciliation.reconcile import in_session
from spark_jobs.reconciliation.run import Run
from spark_jobs.snapshot import snapshot as snapshots
from spark_jobs.snapshot.snapshot import exported_snapshot
from tests import shops
from tests.bank import batch, drain
from tests.changing import raw
from tests.shops import HOWS, PAIRS, SENT, Buy, new, old, till
from tests.spark.following import GRACE, Following

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]  # of several runs each

APP = "tests.shops"
APP_DIR = Path(__file__).parents[2]


def named(name):
    """Return a component that Spark's workers find."""
    return attrgetter(name)(shops)


@pytest.fixture
def reconcile(spark, spark_database_url):
    """Give what reconciles a component of `tests.shops`, by its name."""

    def run(name, **options):
        run = Run(named(name), f"{APP}:{name}", APP_DIR, spark_database_url, **options)
        with exported_snapshot(spark_database_url) as snapshot:
            return in_session(run, snapshot, spark)

    return run


def consume(connection, component, category):
    """Take a category to its end; return how many were duplicates and conflicts."""
    one, duplicates, conflicts = batch(connection, category, component), 0, 0
    while (result := one.run(3, policy=FailurePolicy())).read:
        duplicates += result.counts["duplicate"]
        conflicts += result.counts["conflict"]
    return duplicates, conflicts


def sent(n, message):
    """Return a message of a key and an entity of its own."""
    type_, data, version = message
    return type_, data | {"buyId": f"k{n}", "shopId": f"{n}"}, version


MORE = [
    (new(price="secret"), new()),
    (new(price="secret"), new(price="secret")),
    (new(price="secret"), new(price="secret", currency="EUR")),
    (("Buy", new()[1], 3), new()),
    (("Buy", new()[1], "2"), new()),
]


@pytest.mark.parametrize(
    "how", [HOWS[0], *(pytest.param(how, marks=pytest.mark.long) for how in HOWS[1:])]
)
def test_the_consumers_and_spark_take_the_same_for_conflicts(
    spark_connection, reconcile, monkeypatch, how
):
    """Whatever is sent first and again: a conflict that one of them does not see is a finding."""
    pairs = [(first, again) for first, again, _ in PAIRS.values()] + MORE
    for n, messages in enumerate(pairs):
        for message in messages:
            raw(spark_connection, SENT, *sent(n, message))
    component = named(f"shops.{how}")
    duplicates, conflicts = consume(spark_connection, component, "shop:command")
    # What cannot be decoded is a dead letter and reserves nothing; without `server`, it has no key.
    assert conflicts >= 5
    for small in (True, False):
        if not small:
            monkeypatch.setattr(snapshots, "_SMALL", 0)
        (counted,) = reconcile(f"shops.{how}").categories
        assert counted.conflict_mismatches == 0
        assert counted.missing == 0
        assert (counted.duplicates, counted.conflicts) == (duplicates, conflicts)


def test_only_what_differs_is_read_with_its_data(spark_connection, reconcile, monkeypatch):
    """Where all contents of a key are the same, nothing is decoded."""
    compared = []

    def remembering(self, pairs, *others):
        compared.append(sorted(tuple(row) for row in pairs.collect()))
        return as_it_was(self, pairs, *others)

    as_it_was = meaning.Meanings.compared
    monkeypatch.setattr(meaning.Meanings, "compared", remembering)
    for n in (1, 1, 2, 2):
        raw(spark_connection, SENT, *sent(n, new()))
    for small in (True, False):
        if not small:
            monkeypatch.setattr(snapshots, "_SMALL", 0)
        (counted,) = reconcile("shops.server").categories
        assert (counted.duplicates, counted.conflicts, compared) == (2, 0, [])
    for message in (new(currency="EUR"), new(currency="USD"), old()):
        raw(spark_connection, SENT, *sent(2, message))
    (counted,) = reconcile("shops.server").categories
    assert (counted.duplicates, counted.conflicts) == (4, 1)
    assert compared == [[(5, 3), (6, 3), (7, 3)]]


def test_the_function_is_that_of_the_consumers():
    """And a class that raises anything ends no worker."""

    @dataclass(frozen=True)
    class Exits:
        shop_id: str
        pay_id: str

        def __post_init__(self) -> None:
            if self.pay_id == "x":
                raise SystemExit(3)

    component = till(Exits)

    def means_same(*texts):
        one, other = (meaning.stored("Exits", None, text) for text in texts)
        return meaning.means_same(component, one, other)

    assert means_same('{"shopId": "1", "payId": "a"}', '{"shopId": "1", "payId": "a", "b": 1}')
    assert not means_same('{"shopId": "1", "payId": "a"}', '{"shopId": "1", "payId": "x"}')
    assert not means_same('{"shopId": "1", "payId": "a"}', "secret")
    assert same_content.__module__ == meaning.same_meaning.__module__


@pytest.mark.long
@pytest.mark.parametrize(("how", "at_once"), [("server", 1), ("initiate", 0)])
def test_what_means_the_same_as_a_correction_is_a_reissue(
    spark_connection, reconcile, tmp_path, monkeypatch, how, at_once
):
    """In whatever shape it comes, and though it was a conflict before the correction."""
    name, component = f"shops.{how}", named(f"shops.{how}")

    def counts():
        drain(spark_connection, component)
        found = [reconcile(name, state=tmp_path / "state", verify=True), reconcile(name)]
        with monkeypatch.context() as patched:
            patched.setattr(snapshots, "_SMALL", 0)
            found.append(reconcile(name))
        counts = {
            (one.commands, one.duplicates, one.conflicts, one.missing, one.conflict_mismatches)
            for report in found
            for one in report.categories
        }
        assert len(counts) == 1
        return counts.pop()

    bad, good = old(cents="x"), old(cents=150)
    for message in [bad, new()][: 1 + at_once]:
        raw(spark_connection, SENT, *message)
    assert counts() == (1 + at_once, 0, at_once, 0, 0)
    (at,) = (
        letter.global_position
        for letter in administration.find(spark_connection, Selection())
        if letter.reason == "undecodable"
    )
    correct(spark_connection, component, None, at, json.dumps(good[1]).encode(), "a slip")
    assert counts() == (1 + at_once, at_once, 0, 0, 0)
    for message in (bad, good, new(currency="EUR"), new(currency="USD")):
        raw(spark_connection, SENT, *message)
    assert counts() == (5 + at_once, 3 + at_once, 1, 0, 0)


# Declarations that change


def plant(connection):
    """Send what is a conflict to the former declaration, and what is one to both."""
    pay = {"shopId": "1", "payId": "a"}
    for data in (pay, pay | {"currency": "EUR"}, pay | {"currency": "EUR", "sent": "now"}):
        raw(connection, "till:command-1", "Pay", data)
    raw(connection, "tillTransaction-a", "Pay", pay)


@pytest.mark.long
def test_a_state_judges_anew_what_another_declaration_judged(spark_connection, reconcile, tmp_path):
    """It counts as a run over everything, and goes on from there."""
    state = tmp_path / "state"

    def counts(name, **options):
        report = reconcile(name, state=state, **options)
        everything = reconcile(name)
        (counted,) = report.categories
        assert report == dataclasses.replace(everything, time=report.time)
        return counted.commands, counted.conflicts

    plant(spark_connection)
    assert counts("former") == (3, 2)
    assert counts("now") == (3, 1)
    assert counts("volatile", verify=True) == (3, 0)
    raw(spark_connection, "till:command-1", "Pay", {"shopId": "1", "payId": "a", "sent": "x"})
    assert counts("volatile", verify=True) == (4, 0)
    assert counts("former") == (4, 3)
    assert counts("former", verify=True) == (4, 3)
    # Everything is read again only while everything is there.
    spark_connection.execute("DELETE FROM message_store.messages WHERE global_position = 2")
    with pytest.raises(StateError, match="the store lacks 1 of the messages that it has read; re"):
        reconcile("now", state=state)
    assert (state / "CURRENT").read_text().split()[0] == "run-000006"


@pytest.mark.long
def test_pairs_are_decoded_once(spark_connection, reconcile, tmp_path, monkeypatch):
    """What a state has found to mean the same, or not, it does not ask again."""
    compared = []

    def remembering(self, pairs, *others):
        compared.append(sorted(tuple(row) for row in pairs.collect()))
        return as_it_was(self, pairs, *others)

    as_it_was = meaning.Meanings.compared
    monkeypatch.setattr(meaning.Meanings, "compared", remembering)
    plant(spark_connection)
    conflicts = []
    for more in ({"currency": "EUR"}, {"currency": "USD"}, {"sent": "now"}, {}):
        (counted,) = reconcile("now", state=tmp_path).categories
        conflicts.append((counted.duplicates, counted.conflicts))
        data = {"shopId": "1", "payId": "a"} | more
        raw(spark_connection, "till:command-1", "Pay", data)
    assert compared == [[(2, 4), (3, 4)], [(5, 4)], [(6, 4)], [(7, 4)]]
    assert conflicts == [(1, 1), (2, 1), (2, 2), (2, 3)]


@pytest.mark.long
def test_a_follower_tells_that_a_conflict_is_none_any_more(
    spark, spark_connection, spark_database_url, tmp_path
):
    """It goes on with what it has told, and judges everything anew."""
    plant(spark_connection)

    def following(name):
        component, app = named(name), f"{APP}:{name}"
        return Following(spark, spark_database_url, tmp_path, component, app, APP_DIR)

    one = following("former")
    with one.started():
        assert one.round(0) == []
        assert one.round(GRACE.total_seconds()) == [(False, "conflict")] * 2
    other = following("now")
    with other.started() as follower:
        assert follower.report is None
        assert other.round(GRACE.total_seconds() + 1) == [(True, "conflict")]
        assert follower.standing == {"conflict": 1}
        assert other.round(GRACE.total_seconds() + 2) == []
        assert other.everything().categories == follower.report.categories


def test_the_shop_of_the_tests_of_the_consumers_has_two_shapes():
    """Else the pairs would say nothing."""
    assert named("shops.into").types.names_of(Buy) == ("Buy", "Order")
    assert named("shops.into").types.is_upcast("Order")
