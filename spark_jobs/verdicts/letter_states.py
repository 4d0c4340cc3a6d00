"""States of letters and conflicts, asked anew in every run."""

from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from reservation.declaration.table import declarations
from spark_jobs.facts.codes import Codes
from spark_jobs.snapshot.progress import Consumed, Progress

_SCHEMA = pa.schema(
    [
        ("position", pa.int64()),
        ("is_letter", pa.bool_()),
        ("is_recorded", pa.bool_()),
        ("is_corrected", pa.bool_()),
        ("is_discarded", pa.bool_()),
    ]
)
_TYPES = "position bigint, " + ", ".join(f"{name} boolean" for name in _SCHEMA.names[1:])


def states_of(spark: SparkSession, progress: Progress) -> DataFrame:
    """Return the messages that are dead letters, recorded conflicts, or were corrected."""
    letters, recorded, corrected, discarded = (set[int]() for _ in range(4))
    for one in progress.consumed.values():
        letters |= {*one.letters}
        recorded |= {*one.conflicts}
        corrected |= {of.global_position for of in one.corrections}
        discarded |= {*one.discarded}
    positions = sorted(letters | recorded | corrected)
    columns = [
        positions,
        *([at in of for at in positions] for of in (letters, recorded, corrected, discarded)),
    ]
    # Spark Connect has to know the types where there are none.
    return spark.createDataFrame(pa.table(columns, schema=_SCHEMA), _TYPES)


def was_read(codes: Codes, consumed: Mapping[str, Consumed]) -> str:
    """Return the SQL of whether the consumer has read a message, of `asks` and `first_asked`."""
    branches = [
        f"WHEN asks IN ({_listed(codes.in_category(name))}) THEN {_has_read(one)}"
        for name, one in consumed.items()
        if codes.in_category(name)
    ]
    return f"CASE {' '.join(branches)} ELSE false END" if branches else "false"


def records_conflicts(codes: Codes, consumed: Mapping[str, Consumed]) -> str:
    """Return the SQL of whether a conflict of a command would have been recorded."""
    category = declarations(codes.component).command_category
    one = consumed.get(category)
    first = None if one is None else one.first_position
    return "false" if first is None else f"first_asked > {first}"


def _has_read(one: Consumed) -> str:
    if one.position is None:
        before = int(one.before.timestamp() * 1_000_000) if one.before is not None else 0
        return f"cardinal < {before}"
    if one.highest == one.position:
        return f"first_asked <= {one.position}"
    passed = [
        f"first_asked <= element_at(array({_listed(positions)}), "
        f"1 + cast(abs(coalesce(cardinal, 0) % {len(positions)}) AS int))"
        for positions in (one.partitions, one.former_positions)
        if positions
    ]
    within = f"(first_asked <= {one.highest} AND ({' OR '.join(passed)}))"
    return f"(first_asked <= {one.position} OR {within})"


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(f"{number}L" for number in numbers)
