"""The real PostgreSQL that the tests run on: one named, one in a container, or an embedded one."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DEFAULT_IMAGE = "postgres:17"


@contextmanager
def server(kind: str) -> Iterator[str]:
    """Give the address of a server: that in RESERVATION_TEST_DATABASE_URL, or one of its own.

    Args:
        kind: ``container`` or ``embedded``, where the variable is not set.
    """
    named = os.environ.get("RESERVATION_TEST_DATABASE_URL")
    if named:
        yield named
    elif kind == "container":
        with _container() as address:
            yield address
    else:
        with _embedded() as address:
            yield address


@contextmanager
def _container() -> Iterator[str]:
    from testcontainers.community.postgres import PostgresContainer

    image = os.environ.get("RESERVATION_TEST_IMAGE", DEFAULT_IMAGE)
    with PostgresContainer(image, driver=None) as container:
        yield container.get_connection_url()


@contextmanager
def _embedded() -> Iterator[str]:
    from cli.embedded import start_embedded

    with tempfile.TemporaryDirectory(
        prefix="reservation-test-", ignore_cleanup_errors=True
    ) as folder:
        yield start_embedded(Path(folder) / "postgres", delete=True)
