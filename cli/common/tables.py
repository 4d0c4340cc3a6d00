"""Tables on a terminal, and the same in a file or a pipe: without colours, and no line cut."""

import os

from rich.console import Console

# Of a line where nobody says how wide it may be.
_WIDE = 400


def console() -> Console:
    """Return what prints a table to standard output, in colours only on a terminal."""
    printer = Console()
    if not printer.is_terminal and not os.environ.get("COLUMNS"):
        printer = Console(width=_WIDE)
    return printer
