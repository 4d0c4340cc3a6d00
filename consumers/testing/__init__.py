"""Tests of whole components: in memory, on a database, and killed everywhere.

`run_in_memory` says what a store would hold afterwards. `Databases` and `embedded_server` are what
the fixtures of the pytest plugin are made of. `crash_everywhere` kills a
component at each of its statements.
"""

from consumers.testing.crashing.kit import crash_everywhere
from consumers.testing.crashing.report import (
    Bug,
    BugKind,
    CrashFindings,
    CrashKitError,
    CrashReport,
)
from consumers.testing.databases import Databases
from consumers.testing.embedded_server import embedded_server
from consumers.testing.in_memory import InMemoryStore, MessageOutcome, run_in_memory

__all__ = [
    "Bug",
    "BugKind",
    "CrashFindings",
    "CrashKitError",
    "CrashReport",
    "Databases",
    "InMemoryStore",
    "MessageOutcome",
    "crash_everywhere",
    "embedded_server",
    "run_in_memory",
]
