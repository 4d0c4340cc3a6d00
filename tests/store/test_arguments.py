"""What a caller may hand over to either client, and how what it may not is refused."""

import itertools
from dataclasses import dataclass
from decimal import Decimal
from uuid import uuid4

import pytest

from reservation import NO_STREAM, Metadata, Write
from reservation.errors import EncodeError, MessageIdConflictError, StoreError, StreamNameError
from tests.store.clients import CLIENTS, in_loop
from tests.support.controls import COMMANDS, deposit

both = pytest.mark.parametrize("client", CLIENTS)

PAYLOAD = "10.50"
ID = uuid4()


@dataclass
class Note:
    text: str


def of(n, letter="c"):
    return letter * n


WRITES = {
    "no message": (
        lambda s: s.write([], COMMANDS),
        StoreError,
        f"no message .* to {COMMANDS}",
    ),
    "one id for two": (lambda s: s.write([deposit()] * 2, COMMANDS, id=ID), StoreError, "One id"),
    "None": (lambda s: s.write(None, COMMANDS), EncodeError, "Cannot encode a NoneType"),
    "None of two": (lambda s: s.write([deposit(), None], COMMANDS), EncodeError, "a NoneType"),
    "a class": (lambda s: s.write(Note, COMMANDS), EncodeError, "Cannot encode a type for"),
    "a generator": (
        lambda s: s.write((deposit() for _ in range(2)), COMMANDS),
        EncodeError,
        "Cannot encode a generator",
    ),
    "a Write": (
        lambda s: s.write(Write(deposit(), COMMANDS), COMMANDS),
        StoreError,
        "pass it to write_batch",
    ),
    "no Writes": (lambda s: s.write_batch([deposit()]), StoreError, "holds Writes, not a Deposit"),
    "no batch": (
        lambda s: s.write_batch(Write(deposit(), COMMANDS)),
        StoreError,
        "list of Writes, not a Write",
    ),
    "id of text": (
        lambda s: s.write(deposit(), COMMANDS, id=str(ID)),
        StoreError,
        r"id of a message is a uuid\.UUID, not a str",
    ),
    "id of two": (
        lambda s: s.write_batch([Write(deposit(), COMMANDS, ID), Write(deposit(), COMMANDS, "")]),
        StoreError,
        r"id of a message is a uuid\.UUID, not a str",
    ),
    "swapped": (lambda s: s.write(COMMANDS, deposit()), StreamNameError, "a str, not a Deposit"),
    "swapped, of two": (
        lambda s: s.write([deposit()], deposit(), expected_version=1),
        StreamNameError,
        "a str, not a Deposit",
    ),
    "no name": (lambda s: s.write(deposit(), None), StreamNameError, "a str, not a NoneType"),
    "metadata": (
        lambda s: s.write(deposit(), COMMANDS, metadata={"properties": {}}),
        EncodeError,
        f"The metadata of a message for {COMMANDS} is a Metadata or None, not a dict",
    ),
    "empty metadata": (lambda s: s.write(deposit(), COMMANDS, metadata={}), EncodeError, "a dict"),
    "in metadata": (
        lambda s: s.write(deposit(), COMMANDS, metadata=Metadata(schema_version=object())),
        EncodeError,
        "Cannot encode a Deposit for account:command-123, because of its metadata",
    ),
    "long metadata": (
        lambda s: s.write(deposit(), COMMANDS, metadata=Metadata(properties={"a": of(3000)})),
        EncodeError,
        r"its metadata: Expected at most 2000 bytes of JSON, got 30.*\$\.properties",
    ),
    "long data": (
        lambda s: s.write(Note(of(3000)), COMMANDS),
        EncodeError,
        r"Cannot encode a Note .*: Expected at most 2000 bytes of JSON, got 30.*\$\.text",
    ),
    "long categories": (
        lambda s: s.write(
            deposit(), of(1300) + "-1", metadata=Metadata(correlation_stream_name=of(1301) + "-9")
        ),
        EncodeError,
        "correlation stream are 1300 and 1301 bytes long; the store takes 2600 together",
    ),
}
for version, named in ((True, "bool"), (1.0, "float"), ("1", "str"), (Decimal(1), "Decimal")):
    WRITES[f"expected {named}"] = (
        lambda s, v=version: s.write(deposit(), COMMANDS, expected_version=v),
        StoreError,
        f"expected version of {COMMANDS} is an int or None, not a {named}",
    )
    WRITES[f"expected {named}, of two"] = (
        lambda s, v=version: s.write([deposit()] * 2, COMMANDS, expected_version=v),
        StoreError,
        f"expected version of {COMMANDS} is an int or None, not a {named}",
    )
for version in (-2, 2**63 - 1, 2**63):
    WRITES[f"expected {version}"] = (
        lambda s, v=version: s.write(deposit(), COMMANDS, expected_version=v),
        StoreError,
        f"The expected version {version} of {COMMANDS} is impossible; give the",
    )

READS = {
    "type": (lambda s: s.last_message(COMMANDS, Note), StoreError, "is a str, not a type"),
    "last of None": (lambda s: s.last_message(None), StreamNameError, "a str, not a NoneType"),
    "version of None": (lambda s: s.stream_version(None), StreamNameError, "a str, not a NoneType"),
    "streams": (lambda s: s.read_streams({None: 0}), StreamNameError, "a str, not a NoneType"),
    "stream list": (
        lambda s: s.read_streams([COMMANDS]),
        StoreError,
        "names to positions, not a list",
    ),
    "empty stream": (lambda s: s.read_streams({"": 0}), StreamNameError, "has no category"),
    "streams from": (lambda s: s.read_streams({COMMANDS: True}), StoreError, "int, not a bool"),
    "streams too far": (lambda s: s.read_streams({COMMANDS: 2**63}), StoreError, "no position"),
    "member": (
        lambda s: s.read_category("a", consumer_group_member=0, consumer_group_size="2"),
        StoreError,
        "an int each, not a str",
    ),
    "member alone": (
        lambda s: s.read_category("a", consumer_group_member=0),
        StoreError,
        "no member 0 in a consumer group of size None",
    ),
    "group": (
        lambda s: s.read_category("a", consumer_group_member=0, consumer_group_size=2**63),
        StoreError,
        "no member 0",
    ),
    "correlation": (
        lambda s: s.read_category("a", correlation="b-1"),
        StreamNameError,
        "name of a stream",
    ),
    "correlation type": (
        lambda s: s.read_category("a", correlation=1),
        StreamNameError,
        "a str, not a int",
    ),
}
for value, named in ((True, "bool"), (1.0, "float"), ("1", "str"), (None, "NoneType")):
    for read in ("read_stream", "read_category"):
        for option, words in (("position", "A position"), ("batch_size", "The size of a batch")):
            READS[f"{read} {option} {named}"] = (
                lambda s, r=read, o=option, v=value: getattr(s, r)("account", **{o: v}),
                StoreError,
                f"{words} is an int, not a {named}",
            )
for size in (0, -1, 2**63):
    READS[f"batch of {size}"] = (
        lambda s, n=size: s.read_stream(COMMANDS, batch_size=n),
        StoreError,
        f"A batch of {size} messages",
    )


@both
@in_loop
async def test_invalid_arguments_are_refused(client, database_url, store):
    """Each invalid argument is refused with an error without message values; nothing is written."""
    async with await client.open(database_url, max_connections=1, max_bytes=2000) as used:
        for name, (call, error, words) in {**WRITES, **READS}.items():

            async def attempt(call=call):
                called = call(used)
                if hasattr(called, "__await__"):
                    await called

            with pytest.raises(error, match=words) as caught:
                await attempt()
            assert PAYLOAD not in str(caught.value), name
            assert isinstance(caught.value, error), name
    assert store.stream_version(COMMANDS) == NO_STREAM
    assert list(store.read_category("account:command")) == []


@both
@in_loop
async def test_the_longest_names_that_are_not_refused_are_stored(client, database_url):
    """The longest allowed names are stored, even random ones of letters with 4 bytes."""
    letters = [chr(0x1F300 + n % 700) for n in range(650)]
    category, other = "".join(letters[::7] * 10)[:325], "".join(letters[::-11] * 10)[:325]
    assert len((category + other).encode()) == 2600
    async with await client.open(database_url, max_connections=1) as used:
        metadata = Metadata(correlation_stream_name=f"{other}-1")
        assert await used.write(deposit(), f"{category}-1", metadata=metadata) == 0
        (found,) = [m async for m in used.read_category(category, correlation=other)]
        assert found.metadata == metadata


@both
@in_loop
async def test_a_batch_may_be_anything_that_gives_writes(client, database_url):
    """A batch may be a generator or a tuple, and may have 10,000 messages."""
    async with await client.open(database_url, max_connections=1) as used:
        assert await used.write((deposit("d1"), deposit("d2")), COMMANDS) == 1
        three = (Write(deposit(f"e{n}"), COMMANDS) for n in range(3))
        assert await used.write_batch(three) == [2, 3, 4]
        many = [Write(deposit(f"f{n}"), f"many-{n % 7}") for n in range(10_000)]
        positions = await used.write_batch(many)
        assert positions == [n // 7 for n in range(10_000)]
        read = [m async for m in used.read_category("many", batch_size=4000)]
        assert [(m.stream_name, m.position) for m in read] == [
            (w.stream_name, p) for w, p in zip(many, positions, strict=True)
        ]


@both
@in_loop
async def test_the_same_message_twice_in_a_batch_is_a_retry_of_itself(client, database_url):
    """The same message twice in a batch is a retry; another message of its id is refused."""
    first = Write(deposit("d1"), COMMANDS, id=uuid4(), expected_version=NO_STREAM)
    again = Write(deposit("d1"), COMMANDS, id=first.id, expected_version=0)
    rest = Write(deposit("d2"), COMMANDS, id=uuid4(), expected_version=0)
    async with await client.open(database_url, max_connections=1) as used:
        with pytest.raises(MessageIdConflictError, match="is in the batch twice"):
            await used.write_batch([first, Write(deposit("d3"), COMMANDS, id=first.id)])
        for batch in ([first, first], [first, rest, again], [rest, again, first]):
            expected = [0 if w.id == first.id else 1 for w in batch]
            assert await used.write_batch(batch) == expected
        assert await used.stream_version(COMMANDS) == 1


@both
@in_loop
async def test_names_of_every_alphabet_are_stored(client, database_url):
    """Names of every alphabet are stored, whether one message is written or several."""
    names = [f"счёт:команда-{n}" for n in ("1", "é+ü", "😀", "a b", "x'y", '"z"', "%s", "\\")]
    async with await client.open(database_url, max_connections=1) as used:
        for name in names:
            await used.write(Note(name), name, metadata=Metadata(reply_stream_name=name))
        await used.write_batch([Write(Note(name), name) for name in names])
        read = [m async for m in used.read_category("счёт:команда")]
        assert [m.stream_name for m in read] == names * 2
        assert [m.decode(Note).text for m in read] == names * 2
        streams = await used.read_streams(dict.fromkeys(names, 1))
        assert [(m.stream_name, m.position) for m in streams] == [(n, 1) for n in names]
        for name, last in zip(names, streams, strict=True):
            assert await used.last_message(name, "Note") == last
    assert len(list(itertools.groupby(streams, lambda m: m.stream_name))) == len(names)
