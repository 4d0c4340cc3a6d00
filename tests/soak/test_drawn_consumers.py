"""What hypothesis draws for the tests of consumers, with more examples than those take."""

from tests.apps.once import prepare
from tests.consumers.test_meaning import compare_sizes
from tests.consumers.test_partitions import change_partitions
from tests.consumers.test_processed import handle_histories
from tests.consumers.test_rules import compare_names


def test_the_outcome_is_the_same_for_every_size_of_the_batch(connection):
    """Reissues across versions of a command are what they mean, in any batch."""
    compare_sizes(connection, 50)


def test_every_message_is_read_once_whatever_the_number_of_partitions(connection):
    """However far each partition was, and however often their number is changed."""
    change_partitions(connection, 100)


def test_each_key_takes_effect_once_whatever_happens(connection):
    """Under reissues, redeliveries, failures and pruning."""
    prepare(connection)
    handle_histories(connection, 100)


def test_the_server_names_the_stream_that_the_declaration_names(connection, database_url):
    """Whether the server extracts a key or leaves it to the reader."""
    compare_names(connection, database_url, 100)
