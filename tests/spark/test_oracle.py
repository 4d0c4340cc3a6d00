"""Stores by chance, judged on every path that a run can take, and by SQL written from the docs.

``RESERVATION_TEST_SEED`` says with which seed to begin, ``RESERVATION_TEST_SEEDS`` how many to try.
"""

import os
from datetime import UTC, datetime, timedelta
from itertools import chain

import pytest

from reservation.postgres.queries import load_queries
from spark_jobs.jobs import archive as archiving
from spark_jobs.reconciliation.state import changes
from spark_jobs.snapshot.snapshot import exported_snapshot
from tests.chance import seeds
from tests.spark.paths import Paths
from tests.spark.planting import Planting, component

# Each store is judged many times.
pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

SEEDS = seeds(int(os.environ.get("RESERVATION_TEST_SEEDS", "1")))
APP = "tests.spark.planting:component"
ANSWER = load_queries("tests.spark", "oracle.sql")["answer"]


def answer(connection):
    """Return the oracle's counts and findings."""
    *counts, findings = connection.execute(ANSWER).fetchone()
    return counts, [tuple(finding) for finding in findings]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_path_counts_and_finds_what_the_docs_say(
    spark, spark_connection, spark_database_url, jdbc_address, tmp_path, monkeypatch, seed
):
    """Every path counts and finds the same while a store and its consumers go on."""
    planting = Planting(spark_connection, seed)
    paths = Paths(spark, spark_database_url, jdbc_address, tmp_path, component=component, app=APP)
    archive = tmp_path / "archive"
    monkeypatch.setattr("spark_jobs.reconciliation.reconcile.SAMPLES", 10**6)

    def check(stage, *others):
        (head,) = spark_connection.execute(
            "SELECT max(global_position) FROM message_store.messages"
        ).fetchone()
        planting.consumers(head, 1 + seed % 3)
        planting.corrections(4)
        planting.passes(8)
        counts, findings = answer(spark_connection)
        states = (
            paths.state(),
            paths.state_of_many(monkeypatch, stage),
            paths.state_of_many_in_doubt(monkeypatch),
        )
        for name, (counted, found) in chain(*states, paths.follow(1000 * stage), *others):
            label = f"{name}, stage {stage}, RESERVATION_TEST_SEED={seed}"
            assert counted == counts, label
            assert found in (findings, None), label

    planting.messages(60)
    check(0, paths.small())
    planting.messages(15)
    planting.messages(10, behind=True)
    check(1, paths.by_fingerprints(monkeypatch), paths.state("earlier"))
    with exported_snapshot(spark_database_url) as snapshot:
        before = datetime.now(UTC) + timedelta(days=1)
        assert not archiving.in_session(component, archive, before, snapshot, spark).differences
    check(2, paths.archived(monkeypatch, archive), paths.state_and_archive(archive))


@pytest.mark.parametrize("seed", SEEDS)
def test_states_find_what_has_changed(
    spark, spark_connection, spark_database_url, tmp_path, monkeypatch, seed
):
    """States find the same from what has changed alone, while consumers only go on."""
    planting = Planting(spark_connection, seed)
    paths = Paths(spark, spark_database_url, None, tmp_path, component=component, app=APP)
    monkeypatch.setattr("spark_jobs.reconciliation.reconcile.SAMPLES", 10**6)
    summed, sum_up_changes = [], changes.sum_up_changes

    def noted(*arguments):
        summed.append(sum_up_changes(*arguments))
        return summed[-1]

    monkeypatch.setattr(changes, "sum_up_changes", noted)

    def head():
        (found,) = spark_connection.execute(
            "SELECT max(global_position) FROM message_store.messages"
        ).fetchone()
        return found

    def check(stage):
        counts, findings = answer(spark_connection)
        states = paths.state(), paths.state_of_many_in_doubt(monkeypatch)
        for name, (counted, found) in chain(*states, paths.follow(1000 * stage)):
            label = f"{name}, stage {stage}, RESERVATION_TEST_SEED={seed}"
            assert counted == counts, label
            assert found in (findings, None), label

    planting.messages(60)
    planting.consumers(head(), 1 + seed % 3)
    planting.corrections(4)
    check(0)
    for stage in range(1, 5):
        planting.messages(8, behind=stage == 3)
        planting.further(head())
        planting.passes(3)
        summed.clear()
        check(stage)
        assert len(summed) == 3
        # Something has changed, and something that is looked at has not.
        assert all(len(one.changed[name]) > 0 for one in summed for name in one.changed)
        assert any(
            len(one.changed[name]) < len(one.rows[name]) for one in summed for name in one.rows
        )
