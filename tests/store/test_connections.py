"""The clients on connections of the caller's: their settings, their transactions, their errors."""

import re
import threading
import uuid

import psycopg
import pytest
from psycopg import connect, errors, rows

from reservation import NO_STREAM, MessageStore, Write
from reservation.errors import (
    DatabaseUnavailableError,
    ExpectedVersionError,
    LockTimeoutError,
    MissingRightError,
    RefusedError,
    SchemaError,
    SerializationError,
    StatementCanceledError,
    StoreError,
)
from tests.store.clients import CLIENTS, in_loop
from tests.support.controls import COMMANDS, deposit

both = pytest.mark.parametrize("client", CLIENTS)
levels = pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])


def beginning_at(level):
    """Return the option of a connection whose transactions have an isolation level."""
    return "-cdefault_transaction_isolation=" + level.replace(" ", r"\ ")


async def use(store):
    """Write and read in every way; return what was read."""
    last = await store.stream_version(COMMANDS)
    assert await store.write(deposit("d1"), COMMANDS, expected_version=last) == last + 1
    batch = [Write(deposit("d2"), COMMANDS), Write(deposit("d3"), COMMANDS)]
    assert await store.write_batch(batch) == [last + 2, last + 3]
    stream = [m async for m in store.read_stream(COMMANDS, batch_size=2)]
    assert [m.position for m in stream] == list(range(last + 4))
    assert [m async for m in store.read_category("account:command")] == stream
    member = {"consumer_group_member": 0, "consumer_group_size": 1}
    assert [m async for m in store.read_category("account:command", **member)] == stream
    assert await store.read_streams({COMMANDS: 0}) == stream
    assert await store.last_message(COMMANDS) == stream[-1]
    return stream


@both
@pytest.mark.parametrize(
    "options",
    [
        {"row_factory": rows.dict_row},
        {"row_factory": rows.scalar_row},
        {"row_factory": rows.class_row(dict)},
        {"prepare_threshold": 0},
        {"prepare_threshold": 1},
        {"autocommit": True},
        {"client_encoding": "utf-8"},
        {"options": "-cDateStyle=German -cIntervalStyle=sql_standard -cTimeZone=Asia/Kathmandu"},
        {"options": "-cbytea_output=escape -cextra_float_digits=-15 -cxmloption=document"},
    ],
)
@in_loop
async def test_any_settings_of_a_connection_will_do(client, database_url, store, options):
    """The store works whatever row factory and settings the caller's connection has."""
    async with await client.connect(database_url, **options) as connection:
        stream = await use(client.on(connection))
        assert stream[0].decode(type(deposit())) == deposit("d1")
        await connection.commit()
    assert list(store.read_stream(COMMANDS)) == stream


@both
@pytest.mark.parametrize("kind", ["ClientCursor", "RawCursor"])
@in_loop
async def test_any_cursors_of_a_connection_will_do(client, database_url, kind):
    """The store works with client-side cursors and with other placeholders."""
    factory = getattr(psycopg, f"Async{kind}" if client.is_async else kind)
    async with await client.connect(database_url, cursor_factory=factory) as connection:
        await use(client.on(connection))


@both
@in_loop
async def test_cursors_of_the_server_do_not_matter(client, database_url):
    """The store opens no server-side cursor, and the caller's open cursor stays usable."""
    factory = psycopg.AsyncServerCursor if client.is_async else psycopg.ServerCursor
    async with await client.connect(database_url) as connection:
        connection.server_cursor_factory = factory
        await connection.execute("DECLARE mine CURSOR FOR SELECT 1")
        await use(client.on(connection))
        await connection.execute("FETCH mine")


@both
@in_loop
async def test_another_encoding_is_refused_before_anything_is_garbled(client, database_url, store):
    """A connection with another client encoding is refused, with the way to set it."""
    async with await client.connect(database_url, client_encoding="latin1") as connection:
        used = client.on(connection)
        with pytest.raises(StoreError, match=r"client_encoding of the connection is LATIN1.*SET"):
            await used.write([deposit("é"), deposit("ü")], COMMANDS)
        await connection.execute("SET client_encoding TO 'UTF8'")
        await used.write([deposit("é"), deposit("€")], COMMANDS)
        await connection.commit()
    assert [m.decode(type(deposit())).deposit_id for m in store.read_stream(COMMANDS)] == ["é", "€"]


@both
@in_loop
async def test_a_connection_in_pipeline_mode_will_do(client, database_url, store):
    """In pipeline mode answers keep their order, and a failed statement raises its own error."""

    async def fail(used):
        with pytest.raises(ExpectedVersionError):
            await used.write_initial(deposit(), COMMANDS)
        with pytest.raises(StoreError, match="An earlier statement on this connection failed"):
            await used.stream_version(COMMANDS)

    for autocommit in (True, False):
        async with await client.connect(database_url, autocommit=autocommit) as connection:
            used = client.on(connection)
            async with connection.pipeline():
                await connection.execute("SELECT 1")
                await use(used)
            await connection.commit()
            version = store.stream_version(COMMANDS)
            assert version in (2, 5)
            async with connection.pipeline():
                await fail(used)
                await connection.rollback()
            assert await used.stream_version(COMMANDS) == version


@both
@in_loop
async def test_the_client_ignores_functions_of_the_search_path(client, database_url, connection):
    """The client ignores functions, operators and types of the same names in other schemas."""
    connection.execute(HOSTILE)
    path = {"options": "-csearch_path=hostile,pg_catalog"}
    address = psycopg.conninfo.make_conninfo(database_url, **path)
    with psycopg.connect(address) as misled:
        answer = misled.execute("SELECT max(1::bigint), 'a'::text = 'a'::text").fetchone()
        assert answer == (666, False)
    async with await client.connect(address, autocommit=True) as own:
        await use(client.on(own))
        async with own.transaction():
            await use(client.on(own))
    async with await client.open(address, max_connections=1) as pooled:
        await use(pooled)
    with psycopg.connect(address) as sync:
        ids = [m.id for m in MessageStore(sync).read_stream(COMMANDS)]
        known = uuid.uuid4()
        MessageStore(sync).write(deposit(), COMMANDS, id=known)
        assert MessageStore(sync).stored_ids([known, uuid.uuid4()]) == {known: COMMANDS}
        MessageStore(sync).lock_categories([COMMANDS])
        assert len(ids) == 9


HOSTILE = """
    CREATE SCHEMA hostile;
    CREATE FUNCTION hostile.wrong(text, text) RETURNS boolean LANGUAGE sql RETURN false;
    CREATE FUNCTION hostile.wrong(uuid, uuid) RETURNS boolean LANGUAGE sql RETURN false;
    CREATE FUNCTION hostile.wrong(bigint, bigint) RETURNS boolean LANGUAGE sql RETURN false;
    CREATE OPERATOR hostile.= (FUNCTION = hostile.wrong, LEFTARG = text, RIGHTARG = text);
    CREATE OPERATOR hostile.= (FUNCTION = hostile.wrong, LEFTARG = uuid, RIGHTARG = uuid);
    CREATE OPERATOR hostile.= (FUNCTION = hostile.wrong, LEFTARG = bigint, RIGHTARG = bigint);
    CREATE OPERATOR hostile.>= (FUNCTION = hostile.wrong, LEFTARG = bigint, RIGHTARG = bigint);
    CREATE FUNCTION hostile.largest(bigint, bigint) RETURNS bigint LANGUAGE sql RETURN 666;
    CREATE AGGREGATE hostile.max(bigint) (SFUNC = hostile.largest, STYPE = bigint, INITCOND = 666);
    CREATE FUNCTION hostile.category(text) RETURNS text LANGUAGE sql RETURN 'hostile';
    CREATE FUNCTION hostile.hash_64(text) RETURNS bigint LANGUAGE sql RETURN 666;
    CREATE FUNCTION hostile.row_number() RETURNS bigint LANGUAGE sql RETURN 666;
    CREATE FUNCTION hostile.pg_advisory_xact_lock(bigint) RETURNS void LANGUAGE sql
      AS 'SELECT 1/0';
    CREATE FUNCTION hostile.unnest(text[]) RETURNS SETOF text LANGUAGE sql AS 'SELECT ''x''';
    CREATE FUNCTION hostile.md5(text) RETURNS text LANGUAGE sql RETURN 'x';
    CREATE DOMAIN hostile.jsonb AS text;
    CREATE DOMAIN hostile.uuid AS text;
    CREATE DOMAIN hostile.varchar AS int;
    CREATE DOMAIN hostile.int8 AS text;
    CREATE TABLE hostile.messages (id int);
"""


@levels
@both
@in_loop
async def test_the_race_for_a_version_is_lost_in_words_of_the_store(
    client, database_url, store, level
):
    """A lost race is a wrong expected version that names the stream, however it is detected."""
    async with await client.connect(database_url, options=beginning_at(level)) as own:
        used = client.on(own)
        assert await used.stream_version(COMMANDS) == NO_STREAM  # its snapshot is from now
        store.write(deposit("d1"), COMMANDS)
        for write in (deposit("d2"), [deposit("d2"), deposit("d3")]):
            with pytest.raises(ExpectedVersionError, match=COMMANDS):
                await refused(own, used.write, write, COMMANDS, expected_version=-1)
    assert store.stream_version(COMMANDS) == 0


async def refused(connection, write, *arguments, **named):
    """Write within a savepoint that is rolled back."""
    async with connection.transaction():
        await write(*arguments, **named)


@levels
@both
@in_loop
async def test_a_write_that_its_snapshot_cannot_see_is_run_again(
    client, database_url, store, level
):
    """A write that meets what its snapshot cannot see is to be run again in a new transaction."""
    known = uuid.uuid4()
    async with await client.connect(database_url, options=beginning_at(level)) as own:
        used = client.on(own)
        assert await used.stream_version(COMMANDS) == NO_STREAM  # its snapshot is from now
        store.write(deposit("d1"), COMMANDS, id=known)
        writes = [[Write(deposit("d1"), COMMANDS, id=known)], [Write(deposit("d2"), COMMANDS)]]
        writes.append(writes[0] + [Write(deposit("d3"), COMMANDS)])
        for n, batch in enumerate(writes):
            if level == "read committed":
                assert await used.write_batch(batch) == [[0], [1], [0, 2]][n]
            else:
                with pytest.raises(SerializationError, match="again from its start"):
                    await refused(own, used.write_batch, batch)
        await own.rollback()
        assert await used.write_batch(writes[2]) == [0, 1]


@both
@in_loop
async def test_a_serialization_failure_has_its_own_name(client, database_url, connection, store):
    """A serialization failure has its own error, at the write and at the pool's commit."""
    address = psycopg.conninfo.make_conninfo(database_url, options=beginning_at("serializable"))
    connection.execute("CREATE TABLE seen (n int)")
    connection.execute(
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "RAISE serialization_failure USING MESSAGE = 'could not serialize access'; END $$"
    )
    connection.execute(
        "CREATE CONSTRAINT TRIGGER fail AFTER INSERT ON message_store.messages "
        "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fail()"
    )
    async with await client.open(address, max_connections=1) as pooled:
        with pytest.raises(SerializationError, match="run it again from its start"):
            await pooled.write(deposit(), COMMANDS)
    assert store.stream_version(COMMANDS) == NO_STREAM


@both
@in_loop
async def test_a_deadlock_is_a_serialization_error(client, database_url, admin):
    """Of two transactions that wait for each other's category the server ends one."""
    first, other = "first-1", "second-1"
    lost = []
    soon = "-cdeadlock_timeout=10ms"

    def lock(rival):
        try:
            MessageStore(rival).lock_categories([first])
        except SerializationError as error:
            lost.append(str(error))

    with connect(database_url, options=soon) as rival:
        MessageStore(rival).lock_categories([other])
        async with await client.connect(database_url, options=soon) as own:
            await client.on(own).write(deposit(), first)
            locking = threading.Thread(target=lock, args=(rival,))
            locking.start()
            while not admin.execute(
                "SELECT 1 FROM pg_locks WHERE pid = %s AND NOT granted", [rival.info.backend_pid]
            ).fetchall():
                pass
            try:
                await client.on(own).write(deposit(), other)
            except SerializationError as error:
                lost.append(str(error))
            await own.rollback()
            locking.join()
    assert len(lost) == 1
    assert "deadlock detected" in lost[0]


@both
@pytest.mark.parametrize(
    ("limit", "error", "words"),
    [
        ("lock_timeout=20ms", LockTimeoutError, "gave up waiting"),
        ("statement_timeout=150ms", StatementCanceledError, "canceled a statement"),
    ],
)
@in_loop
async def test_waiting_too_long_for_a_lock(client, database_url, store, limit, error, words):
    """A write that exceeds the caller's lock timeout raises an error and stores nothing."""
    with connect(database_url) as holder:
        MessageStore(holder).lock_categories([COMMANDS])
        async with await client.connect(database_url, options=f"-c{limit}") as own:
            with pytest.raises(error, match=words):
                await client.on(own).write(deposit(), COMMANDS)
            with pytest.raises(StoreError, match=r"earlier statement .* roll back"):
                await client.on(own).write(deposit(), COMMANDS)
            await own.rollback()
            await own.execute("SET statement_timeout = 0")
            assert await client.on(own).stream_version(COMMANDS) == NO_STREAM


@both
@in_loop
async def test_a_read_only_transaction(client, database_url, store):
    """In a read-only transaction reading works, and a write says where it could be done."""
    async with await client.connect(
        database_url, autocommit=True, options="-cdefault_transaction_read_only=on"
    ) as own:
        for write in (deposit(), [deposit(), deposit()]):
            with pytest.raises(StoreError, match=r"read-only transaction; write in") as caught:
                await client.on(own).write(write, COMMANDS)
            assert type(caught.value) is StoreError
        assert await client.on(own).stream_version(COMMANDS) == NO_STREAM


@both
@in_loop
async def test_a_database_without_the_store(client, empty_database_url):
    """The error for a database without the store names the command to run."""
    async with await client.open(empty_database_url, max_connections=1) as used:
        for call in (
            lambda: used.write(deposit(), COMMANDS),
            lambda: used.stream_version(COMMANDS),
            lambda: used.last_message(COMMANDS),
        ):
            with pytest.raises(SchemaError, match="reservation store install"):
                await call()


@both
@in_loop
async def test_an_index_row_that_is_too_long_is_not_tried_again(client, database_url, connection):
    """An index row that is too long is no unavailable database, so it is not retried."""
    connection.execute("CREATE INDEX ON message_store.messages ((data ->> 'depositId'))")
    key = "".join(chr(0x4E00 + n * 7919 % 20000) for n in range(3000))
    async with await client.open(database_url, max_connections=1) as used:
        with pytest.raises(StoreError, match="index row") as caught:
            await used.write(deposit(key), COMMANDS)
    assert type(caught.value) is RefusedError
    assert key[:10] not in str(caught.value)


@both
@in_loop
async def test_a_transaction_that_idled_for_too_long_is_a_lost_connection(
    client, database_url, admin, store
):
    """A session that the server ended for idling is a lost connection."""
    own = await client.connect(database_url)
    pid = own.info.backend_pid
    await client.on(own).write(deposit(), COMMANDS)
    await own.execute("SET idle_in_transaction_session_timeout = '20ms'")
    while admin.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [pid]).fetchall():
        pass
    with pytest.raises(DatabaseUnavailableError, match=r"was lost.*idle"):
        await client.on(own).write(deposit(), COMMANDS)
    await own.close()
    assert store.stream_version(COMMANDS) == NO_STREAM


REFUSALS = [
    ("08006", DatabaseUnavailableError, "was lost"),
    ("57P01", DatabaseUnavailableError, "was lost"),
    ("57P02", DatabaseUnavailableError, "was lost"),
    ("57P03", DatabaseUnavailableError, "was lost"),
    ("40003", DatabaseUnavailableError, "was lost"),
    ("53100", DatabaseUnavailableError, "fails"),
    ("53200", DatabaseUnavailableError, "fails"),
    ("53300", DatabaseUnavailableError, "fails"),
    ("58030", DatabaseUnavailableError, "fails"),
    ("54000", RefusedError, "refused"),
    ("54001", RefusedError, "refused"),
    ("55000", StoreError, "refused"),
    ("22P05", RefusedError, "refused a value: UntranslatableCharacter"),
    ("23514", RefusedError, "refused"),
    ("XX000", StoreError, "refused"),
    ("40001", SerializationError, "again"),
    ("40P01", SerializationError, "again"),
    ("55P03", LockTimeoutError, "waiting"),
    ("57014", StatementCanceledError, "canceled a statement"),
    ("25006", StoreError, "standby"),
    ("25P02", StoreError, "roll back"),
    ("22023", RefusedError, "refused a value: InvalidParameterValue"),
    ("2200H", StoreError, "the reason"),
    ("0A000", RefusedError, "refused"),
    ("40002", SerializationError, "again"),
    ("42501", MissingRightError, "grant"),
    ("42601", StoreError, "refused"),
    ("3F000", StoreError, "code in the database"),
    ("42883", StoreError, "code in the database"),
    ("42P01", StoreError, "code in the database"),
    ("P0001", StoreError, "refused"),
]
RAISE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE USING ERRCODE = NEW.data->>'depositId', MESSAGE = 'the reason';
END $$;
CREATE TRIGGER refuse BEFORE INSERT ON message_store.messages
  FOR EACH ROW EXECUTE FUNCTION refuse()
"""


def test_every_kind_of_refusal_has_its_name(connection, store):
    """Errors that are worth a retry can be distinguished from refusals."""
    connection.execute(RAISE)
    for state, expected, words in REFUSALS:
        with pytest.raises(expected, match=words) as caught, connection.transaction():
            store.write(deposit(state), COMMANDS)
        assert type(caught.value) is expected, state
        assert isinstance(caught.value.__cause__, errors.lookup(state)), state


@pytest.mark.parametrize(
    "scheme", ["postgresql+psycopg", "postgresql+asyncpg", "postgres+psycopg2"]
)
def test_a_url_of_sqlalchemy_is_named_as_such(scheme):
    """The error says what to write, and repeats no password."""
    said = rf"begins with {re.escape(scheme)}://, so it is a URL of SQLAlchemy.*write postgresql://"
    with pytest.raises(DatabaseUnavailableError, match=said) as caught:
        MessageStore.open(f"{scheme}://me:secret@localhost/bank")
    assert "secret" not in str(caught.value)
