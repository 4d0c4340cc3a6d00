"""``python -m benchmarks [NAME]``: run all benchmarks, or one."""

import sys
from pathlib import Path

from benchmarks import (
    answers,
    console,
    contention,
    footprint,
    gathering,
    groups,
    idempotence,
    idle,
    large,
    large_entity,
    memory,
    message_db,
    notice,
    old_snapshot,
    pattern,
    rates,
    read_models,
    spark,
    store,
    tracing,
    whole,
)
from benchmarks.harness import BENCHMARKS, run
from benchmarks.peers import comparison

# Importing them registers their benchmarks.
MODULES = (
    store,
    pattern,
    idempotence,
    whole,
    read_models,
    comparison,
    groups,
    rates,
    memory,
    idle,
    footprint,
    notice,
    old_snapshot,
    answers,
    gathering,
    contention,
    message_db,
    tracing,
    console,
    large,
    large_entity,
    spark,
)

if __name__ == "__main__":
    names = [name for name in sys.argv[1:] if name]
    if not set(names) <= set(BENCHMARKS):
        sys.exit(f"There is no benchmark {names[0]!r}; there are {', '.join(BENCHMARKS)}")
    run(names[0] if names else None, Path("build/bench.json"))
