"""A client that is not ours."""

from collections.abc import Iterator
from typing import Any

import pytest
from psycopg import conninfo


@pytest.fixture
def peer(database_url: str) -> Iterator[Any]:
    """Give message-db-py, a client that is not ours, on the test's database."""
    from message_db.client import MessageDB

    address = conninfo.make_conninfo(database_url, options="-csearch_path=message_store")
    client = MessageDB.from_url(address, max_connections=2)
    yield client
    client.connection_pool.closeall()
