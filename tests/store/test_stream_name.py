"""The grammar of stream names."""

import pytest

from reservation.errors import StreamNameError
from reservation.messages import stream_name


@pytest.mark.parametrize(
    ("name", "category", "identifier", "cardinal_id"),
    [
        ("account-123", "account", "123", "123"),
        ("account:command-123", "account:command", "123", "123"),
        ("accountTransaction-123+abc", "accountTransaction", "123+abc", "123"),
        ("account-9f-5c", "account", "9f-5c", "9f-5c"),
        ("account:command+position-1", "account:command+position", "1", "1"),
        ("account", "account", None, None),
        ("account:command", "account:command", None, None),
        ("account-", "account", "", ""),
    ],
)
def test_a_name_is_split_at_its_first_separators(
    connection, name, category, identifier, cardinal_id
):
    """A name is split at its first separators, by the client as by the server."""
    assert stream_name.category(name) == category
    assert stream_name.identifier(name) == identifier
    assert stream_name.cardinal_id(name) == cardinal_id
    assert connection.execute(
        "SELECT message_store.category(%s), message_store.id(%s), message_store.cardinal_id(%s), "
        "message_store.is_category(%s)",
        [name, name, name, name],
    ).fetchone() == (category, identifier, cardinal_id, stream_name.is_category(name))


def test_several_ids_make_a_compound_id():
    """The first of several ids is the cardinal id."""
    assert stream_name.of("accountTransaction", "123", "abc") == "accountTransaction-123+abc"
    assert stream_name.ids("accountTransaction-123+abc") == ["123", "abc"]


def test_commands_have_a_category_of_their_own():
    """Commands have their own category beside the entity's events."""
    assert stream_name.command_category("account") == "account:command"


@pytest.mark.parametrize(
    ("category", "ids", "problem"),
    [
        ("", ["1"], "has no category"),
        ("account-1", ["1"], "is the name of a stream"),
        ("account", [], "needs an id"),
        ("account", ["1", ""], "not empty"),
        ("account", ["1+2", "3"], "separates the ids"),
        ("account", ["1\n"], "control character"),
        ("account", ["\0"], "control character"),
        ("account", ["é" * 1300], "bytes long"),
    ],
)
def test_a_name_that_the_store_cannot_hold_is_refused(category, ids, problem):
    """A name that the store cannot hold is refused before anything is sent."""
    with pytest.raises(StreamNameError, match=problem):
        stream_name.of(category, *ids)


def test_the_longest_name_fits_the_index(store):
    """The longest allowed name fits the server's index."""
    from tests.support.controls import deposit

    name = stream_name.of("account", "".join(map(chr, range(200, 1470)))[:1292])
    assert len(name.encode()) > 2500
    assert store.write(deposit(), name) == 0
