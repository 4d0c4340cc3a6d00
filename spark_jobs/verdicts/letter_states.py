"""States of letters and conflicts, which are read anew in every run."""

from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from reservation.declaration.table import declarations
from spark_jobs.facts.codes import Codes
from spark_jobs.snapshot.progress import Consumed, Progress
from spark_jobs.source.columns import schema
from spark_jobs.source.options import arrow_schema

_TYPES = {
    "position": "bigint",
    **dict.fromkeys(("is_letter", "is_recorded", "is_corrected", "is_discarded"), "boolean"),
}


def states_of(spark: SparkSession, progress: Progress) -> DataFrame:
    """Return the messages that are dead letters, recorded conflicts, or were corrected."""
    letters, recorded, corrected, discarded = (set[int]() for _ in range(4))
    for consumed in progress.consumed.values():
        letters |= {*consumed.letters}
        recorded |= {*consumed.conflicts}
        corrected |= {correction.global_position for correction in consumed.given}
        discarded |= {*consumed.discarded}
    positions = sorted(letters | recorded | corrected)
    states = (letters, recorded, corrected, discarded)
    columns = [positions, *([position in state for position in positions] for state in states)]
    # Spark Connect has to know the types where there are none.
    table = pa.table(columns, schema=arrow_schema(_TYPES))
    return spark.createDataFrame(table, schema(_TYPES))


def was_read(codes: Codes, consumed: Mapping[str, Consumed]) -> str:
    """Return the SQL of whether the consumer has read a message, of `asks` and `first_asked`."""
    branches = [
        f"WHEN asks IN ({_listed(codes.in_category(name))}) THEN {_has_read(progress)}"
        for name, progress in consumed.items()
        if codes.in_category(name)
    ]
    return f"CASE {' '.join(branches)} ELSE false END" if branches else "false"


def records_conflicts(codes: Codes, consumed: Mapping[str, Consumed]) -> str:
    """Return the SQL of whether a conflict of a command would have been recorded."""
    progress = consumed.get(declarations(codes.component).command_category)
    first = None if progress is None else progress.first_position
    return "false" if first is None else f"first_asked > {first}"


def _has_read(consumed: Consumed) -> str:
    if consumed.position is None:
        before = 0 if consumed.before is None else int(consumed.before.timestamp() * 1_000_000)
        return f"cardinal < {before}"
    if consumed.highest == consumed.position:
        return f"first_asked <= {consumed.position}"
    by_partition = [
        f"first_asked <= element_at(array({_listed(positions)}), "
        f"1 + cast(abs(coalesce(cardinal, 0) % {len(positions)}) AS int))"
        for positions in (consumed.partitions, consumed.former_positions)
        if positions
    ]
    within = f"(first_asked <= {consumed.highest} AND ({' OR '.join(by_partition)}))"
    return f"(first_asked <= {consumed.position} OR {within})"


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(f"{number}L" for number in numbers)
