"""``reservation check`` misses each of the rights that a role needs, one at a time."""

import pytest

from tests.consumers.test_check import (
    KINDS,
    check_that_it_is_missed,
    checked,
    cli,
    granted,
    rights_of,
)

__all__ = ["checked", "cli", "granted"]  # fixtures


@pytest.mark.parametrize("kind", KINDS)
def test_every_right_is_missed(connection, checked, granted, kind):
    """All of those that the command for a kind of role grants."""
    role = granted(kind)
    for right in rights_of(connection, role):
        check_that_it_is_missed(connection, checked, kind, role, right)
