"""Tables on a terminal, and in a file or a pipe: there without colours and with whole lines."""

import os

from rich.console import Console

# The width of a line in a file or a pipe.
_WIDE = 400


def console() -> Console:
    """Return a console for standard output, with colours only on a terminal."""
    printer = Console()
    if not printer.is_terminal and not os.environ.get("COLUMNS"):
        printer = Console(width=_WIDE)
    return printer
