"""The place of servers of a test's own, which are stopped, crashed and copied."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from consumers.testing.embedded_server import server_folder


@pytest.fixture(name="server_folder")
def _server_folder() -> Iterator[Path]:
    """Give a folder for the data of servers of a test's own."""
    with server_folder() as folder:
        yield folder
