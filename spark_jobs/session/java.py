"""Finding the Java that Spark runs on, before Spark looks for it and says so in forty lines."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from spark_jobs.common.errors import SparkUnavailableError
from spark_jobs.session.size import Size

MINIMUM = 17

_INSTALL = (
    "install it with `apt-get install openjdk-17-jre-headless` (Debian), `dnf install "
    "java-17-openjdk-headless` (Fedora) or `brew install openjdk@17` (macOS), or point JAVA_HOME "
    "at one"
)


def kept_classes() -> Path:
    """Return where `spark_jobs.jobs.prepare` keeps Java's classes: in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "reservation" / "spark-classes.jsa"


def options(size: Size) -> str:
    """Return what Java is told when Spark's driver is started.

    Args:
        size: of the store.
    """
    kept = kept_classes()
    return " ".join(
        [
            # A Java process without memory answers nothing any more; ended, it is noticed.
            "-XX:+ExitOnOutOfMemoryError",
            # A job wants to be done soon, and does not mind to pause.
            "-XX:+UseParallelGC",
            # What is new has a quarter of the memory, 256 MB of the 1 GB that there is by itself,
            # and that from the start: to find the best size takes longer, and ends up with more.
            "-XX:NewRatio=3",
            "-XX:NewSize=256m",
            # To compile well what is done once takes as long as to do it.
            *([] if size is Size.LARGE else ["-XX:TieredStopAtLevel=1"]),
            # Compiled quickly it would get a fifth of this, and be thrown away when that is full.
            "-XX:ReservedCodeCacheSize=240m",
            *([f'"-XX:SharedArchiveFile={kept}"'] if kept.is_file() else []),
        ]
    )


def require_java() -> int:
    """Return the major version of the Java that Spark will use.

    Raises:
        SparkUnavailableError: there is none, or it is too old; the message names the package.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).is_file():
        where = f"in JAVA_HOME ({home})" if home else "on the PATH"
        raise SparkUnavailableError(
            f"Spark needs Java {MINIMUM} or later and there is none {where}; {_INSTALL}"
        )
    try:
        told = subprocess.run(  # noqa: S603  the very program that Spark would start
            [java, "-version"], capture_output=True, text=True, check=True, timeout=60
        ).stderr
    except (OSError, subprocess.SubprocessError) as error:
        raise SparkUnavailableError(f"{java} does not run: {error}; {_INSTALL}") from error
    found = re.search(r'version "(\d+)(?:\.(\d+))?', told)
    if found is None:
        raise SparkUnavailableError(f"{java} does not tell its version; {_INSTALL}")
    # Java 8 and before call themselves 1.8.
    major = int(found[2] or 0) if found[1] == "1" else int(found[1])
    if major < MINIMUM:
        raise SparkUnavailableError(
            f"Spark needs Java {MINIMUM} or later and {java} is Java {major}; {_INSTALL}"
        )
    return major
