"""A handler that ends the session of its batch, until that is its message's failure."""

import pytest

from tests.consumers.builders import stored_letter
from tests.consumers.test_handlers_connection import ENDING, job_with, write, written
from tests.support.consuming import hosted, until


@pytest.mark.parametrize("trick", ENDING)
def test_a_handler_that_ends_its_session_fails(connection, store, database_url, trick):
    """A connection that is lost in the call for one message again and again is its fault."""
    connection.execute("CREATE TABLE jobs (id text)")
    others = set(write(store, [trick], waits=False))
    with hosted(job_with(), database_url) as thread:
        until(lambda: written(connection) >= others, thread)
    error = stored_letter(connection).error
    assert "times in a row while Do at job:command-trick-0" in error
    rows = connection.execute("SELECT id, count(*) FROM jobs GROUP BY id").fetchall()
    assert {*rows} == {(name, 1) for name in others}
