"""The environment with the peers: made when it is first needed, from pinned versions."""

import functools
import subprocess
import venv
from pathlib import Path

from benchmarks.running import ROOT

FOLDER = ROOT / "build" / "peers"
PYTHON = FOLDER / "bin" / "python"
REQUIREMENTS = Path(__file__).with_name("requirements.txt")


@functools.cache
def install() -> bool:
    """Install the peers unless they are; where that fails, say so in one line and return False."""
    wanted, installed = REQUIREMENTS.read_text(), FOLDER / "installed.txt"
    if installed.exists() and installed.read_text() == wanted:
        return True
    print(f"Installing the peers into {FOLDER.relative_to(ROOT)}")
    venv.create(FOLDER, clear=True, with_pip=True)
    arguments = ["--quiet", "--retries=1", "--no-deps", "--requirement", REQUIREMENTS]
    done = subprocess.run(
        [PYTHON, "-m", "pip", "--disable-pip-version-check", "install", *arguments],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        print(f"The peers are left out, for pip failed: {done.stderr.strip().splitlines()[-1]}")
        return False
    installed.write_text(wanted)
    return True


def version(name: str) -> str:
    """Return the version of a peer."""
    pins = (line.partition("==") for line in REQUIREMENTS.read_text().splitlines())
    return next(pinned for package, _, pinned in pins if package == name)
