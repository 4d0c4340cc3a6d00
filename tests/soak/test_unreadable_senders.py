"""What the server itself cannot make a text of."""

import pytest
from psycopg import errors

from tests.store.builders import grant, new_role, run  # noqa: F401  a fixture
from tests.store.test_unreadable import LARGE, WAYS


def test_what_is_longer_than_a_text_can_be_is_refused_too(connection, new_role):  # noqa: F811
    """A sender gets the same error for what the server itself cannot make a text of."""
    role = new_role()
    grant(connection, "sender", role, ["a"])
    run(connection, "SET ROLE {}", role)
    data = LARGE.replace("539", "9000")
    with pytest.raises(errors.ProgramLimitExceeded, match="A message for a-1 has data of more"):
        connection.execute("SELECT " + WAYS["one"].format(type="'T'", data=data, metadata="NULL"))
