"""Sums of fingerprints by groups, in this process and on Spark's workers."""

import random
from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest

from bank import account
from spark_jobs.analysis.commands import CommandsJob
from spark_jobs.analysis.effects import EffectsJob
from spark_jobs.analysis.sketches import grouping
from spark_jobs.reconciliation.reading.fingerprinting import SCHEMA
from spark_jobs.snapshot.progress import Progress

pytestmark = pytest.mark.spark

MESSAGES = 90_000  # several rows of positions, and blocks, for what most of them show


def drawn(chance):
    """Return fingerprints of commands, reservations and events, some of them reissued."""

    def message(at):
        category = chance.choice([0, 0, 0, 1, 2])
        return {
            "global_position": at,
            "category": category,
            "type": chance.randrange(2),
            "is_first": chance.random() < 0.1,
            "is_copy": False,
            "key": at if category == 0 and chance.random() < 0.9 else chance.randrange(MESSAGES),
            "says": chance.randrange(2),
            "causation": at - chance.randrange(1, 9) if category == 2 else None,
            "kind": chance.randrange(5),
        }

    return pa.Table.from_pylist([message(at) for at in range(1, MESSAGES + 1)], SCHEMA)


def combined(rows):
    """Return for each job and what is seen how many groups show it, and where they are."""
    found = defaultdict(lambda: [0, []])
    for row in rows:
        positions = np.frombuffer(row.pop("positions"), np.int64).tolist()
        groups, messages = row.pop("groups"), row.pop("messages")
        assert messages == len(positions) <= grouping._MOST_OF_ROW
        one = found[tuple(sorted((name, str(value)) for name, value in row.items()))]
        one[0] += groups
        one[1] += positions
    return {seen: (groups, sorted(positions)) for seen, (groups, positions) in found.items()}


def test_workers_see_what_one_process_sees_in_rows_of_bounded_size(spark):
    """However the groups are divided, each message is listed once, and each group counted once."""
    table = drawn(random.Random(1))
    jobs = [CommandsJob(account, "", None), EffectsJob(account)]
    sketches = [job.sketch(Progress()) for job in jobs]
    here = combined(grouping.summed_here([table, table], sketches).to_pylist())
    messages = spark.createDataFrame(table)
    seen = grouping.summed(messages.mapInArrow, sketches, 2)
    there = [row.asDict() for row in seen.collect()]
    assert any(row["groups"] == 0 for row in there)
    assert combined(there) == here
    for n, sketch in enumerate(sketches):
        of_job = {seen: found for seen, found in here.items() if ("job", str(n)) in seen}
        numbers = sketch.of(table)
        assert sum(groups for groups, _ in of_job.values()) == len(
            set(numbers["group"].to_pylist())
        )
        listed = sorted(at for _, positions in of_job.values() for at in positions)
        assert listed == sorted(numbers["global_position"].to_pylist())
