"""A plugin of pytest that notes which lines each test reaches, or runs the tests that reach some.

``MUTATION_NOTE`` names the file to note in; ``MUTATION_CHOOSE`` the file that lists the tests to
run, in their order.
"""

import json
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.mutation.targets import TARGETS

_reached: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
_durations: dict[str, float] = {}
_failed: set[str] = set()
_modules = {str(Path(f"{module}.py").resolve()): f"{module}.py" for module in TARGETS}
_test = ""


# Any: what a trace function takes and returns.
def _trace(frame: FrameType, event: str, _: Any) -> Any:
    module = _modules.get(frame.f_code.co_filename)
    if module is None:
        return None
    if event in {"call", "line"}:
        _reached[_test][module].add(frame.f_lineno)
    return _trace


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note what a test reaches."""
    global _test
    if "MUTATION_NOTE" not in os.environ:
        return (yield)
    _test = item.nodeid
    threading.settrace(_trace)
    sys.settrace(_trace)
    try:
        return (yield)
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how long a test takes, with what makes it ready."""
    _durations[report.nodeid] = _durations.get(report.nodeid, 0) + report.duration
    if not report.passed:
        _failed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    """Write the notes."""
    if "MUTATION_NOTE" in os.environ:
        notes = {
            test: {
                "seconds": round(seconds, 3),
                "lines": {name: sorted(lines) for name, lines in _reached[test].items()},
            }
            for test, seconds in _durations.items()
            if test not in _failed
        }
        Path(os.environ["MUTATION_NOTE"]).write_text(json.dumps(notes))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the tests that were chosen, in their order."""
    if "MUTATION_CHOOSE" in os.environ:
        chosen = json.loads(Path(os.environ["MUTATION_CHOOSE"]).read_text())
        order = {test: n for n, test in enumerate(chosen)}
        items[:] = sorted(
            (item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid]
        )
