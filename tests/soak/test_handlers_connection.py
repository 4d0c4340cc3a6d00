"""What handlers do to the connection of their batch, with a second attempt for each of them."""

import pytest

from reservation import Retry
from tests.consumers.test_handlers_connection import FAILING, fail_alone


@pytest.mark.parametrize(
    "options", [{}, {"retry": Retry(attempts=2, first="1ms")}], ids=["directly", "by a policy"]
)
def test_it_is_a_failure_of_its_message_alone(connection, store, database_url, options):
    """`tests/consumers` has one attempt for each, and a second one for some."""
    fail_alone(connection, store, database_url, options, FAILING)
