"""The example's folder: beside the packages in a checkout, within ``cli`` in a wheel."""

from pathlib import Path

import cli
from reservation.errors import AppPathError


def examples_folder() -> Path:
    """Return the folder from which ``bank:account`` is the path of the example."""
    home = Path(cli.__file__).resolve().parent
    for folder in (home / "examples", home.parent / "examples"):
        if (folder / "bank" / "__init__.py").is_file():
            return folder
    raise AppPathError(f"The example is neither in {home} nor beside it; install the wheel again")
