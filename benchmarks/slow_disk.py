"""A slow disk for a PostgreSQL of one's own: a library that is preloaded and delays each flush.

It needs a C compiler, and a server whose ``wal_sync_method`` is ``fdatasync``, the default on
Linux.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int fdatasync(int fd) {
  int (*really)(int) = dlsym(RTLD_NEXT, "fdatasync");
  int result = really(fd);
  const char *gate = getenv("SLOW_DISK_GATE");
  struct timespec turn = {0, 500000}, delay = {0, atol(getenv("SLOW_DISK_MS")) * 1000000};
  while (access(gate, F_OK) == 0) nanosleep(&turn, 0);
  nanosleep(&delay, 0);
  return result;
}
"""


def compiler() -> str | None:
    """Return the C compiler; None if there is none."""
    return shutil.which("cc")


def slow_disk(folder: Path, milliseconds: int = 2) -> Mapping[str, str]:
    """Return the environment for a server whose flushes take longer."""
    library = folder / "slow_disk.so"
    command = [compiler() or "cc", "-shared", "-fPIC", "-x", "c", "-o", str(library), "-", "-ldl"]
    subprocess.run(command, input=_SOURCE, text=True, check=True)
    library.chmod(0o755)
    return {
        "LD_PRELOAD": str(library),
        "SLOW_DISK_MS": str(milliseconds),
        "SLOW_DISK_GATE": str(folder / "gate"),
    }


@contextmanager
def inherited(environment: Mapping[str, str]) -> Iterator[None]:
    """Let processes that are started in a block have an environment too."""
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
