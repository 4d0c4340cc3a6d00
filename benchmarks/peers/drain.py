"""How fast the workers of a peer work off what was enqueued before."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from psycopg import Connection, conninfo

from benchmarks import workload
from benchmarks.harness import Bench
from benchmarks.peers import environment
from benchmarks.running import PATIENCE, ROOT
from reservation.postgres.connection import connect
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("benchmarks")


def drain(bench: Bench, peer: str, count: int, setting: int, *, processes: int = 1) -> float:
    """Enqueue, then run the workers; return messages a second."""
    with bench.database() as url, connect(url, autocommit=True) as connection:
        _finish(_start(environment.PYTHON, url, peer, "send", count))
        workload.settle(connection)
        workers = [_start(environment.PYTHON, url, peer, "work", setting) for _ in range(processes)]
        spans = [json.loads(_finish(worker)) for worker in workers]
        done = connection.execute(_QUERIES[f"done_by_{peer}"]).fetchall()[0][0]
    assert done == count, f"{peer} did {done:,} of {count:,}"
    return count / (max(span["end"] for span in spans) - min(span["start"] for span in spans))


def one_at_a_time(connection: Connection[Any], batch_size: int) -> float:
    """Handle the commands that a database has by the plain loop; return how many seconds it took.

    It runs in this project's environment, so that no peer needs to be installed.
    """
    worker = _start(sys.executable, connection.info.dsn, "psycopg", "work", batch_size)
    span = json.loads(_finish(worker))
    return float(span["end"] - span["start"])


def _start(
    python: Path | str, database_url: str, peer: str, task: str, number: int
) -> subprocess.Popen[str]:
    """Start a process of a peer, which finds the database by the variables of libpq."""
    address: dict[str, Any] = conninfo.conninfo_to_dict(database_url)
    return subprocess.Popen(
        [python, "-P", "-m", "benchmarks.peers.workers", peer, task, str(number)],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PGHOST": address["host"],
            "PGUSER": address["user"],
            "PGDATABASE": address["dbname"],
        },
        stdout=subprocess.PIPE,
        text=True,
    )


def _finish(process: subprocess.Popen[str]) -> str:
    """Wait for a process to end; return what it printed."""
    try:
        output, _ = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()  # nothing, if it has ended
    assert process.returncode == 0, f"{process.args} failed"
    return output
