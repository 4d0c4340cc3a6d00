"""What several tests of this folder build: a till whose handler fails, and its dead letters."""

import contextlib
import json
import signal
from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

import psycopg
from psycopg import Connection
from psycopg.types.json import Jsonb

import consumers
from reservation import Component, MessageStore
from tests.apps.bank import address
from tests.support.commands import invoke_cli

TILLS = "till:command"


@dataclass(frozen=True)
class Pay:
    """A payment, named by its till's number and a letter, as in 1a."""

    pay_id: str
    till_id: str
    amount: int = 1


@dataclass(frozen=True)
class Paid:
    pay_id: str
    till_id: str
    amount: int = 1


class Till:
    """A component whose handler raises `error` at the payments in `failing`."""

    def __init__(self, connection, *, handler=None, error=ValueError, attempts=1, **options):
        self.connection = connection
        self.store = MessageStore(connection)
        self.error = error
        self.failing = set()
        self.calls = []
        self.before = lambda command, context: None
        self.component = Component("till", id="till_id", attempts=attempts)
        self.component.handle(Pay, **{"once": None} | options)(handler or self.handle)

    def handle(self, command, entity, context):
        self.calls.append(command.pay_id)
        self.before(command, context)
        if command.pay_id in self.failing:
            raise self.error("secret")
        return context.follow(command, Paid)

    def send(self, *names):
        for name in names:
            self.store.write(pay(name), f"{TILLS}-{number(name)}")

    def drain(self, **options):
        """Handle what is to be handled now; return how the messages were counted."""
        return consumers.drain(self.component, address(self.connection), **options).counts

    def paid(self):
        """Return the payments that took effect, in the order of the log."""
        return [event.decode(Paid).pay_id for event in self.store.read_category("till")]

    def position(self, name):
        """Return the global position of a payment's command."""
        ((position,),) = self.connection.execute(
            "SELECT global_position FROM message_store.messages WHERE type = 'Pay'"
            " AND data->>'payId' = %s",
            [name],
        ).fetchall()
        return position

    def states(self):
        """Return the state of each letter, by its payment."""
        return {
            row["name"]: "waiting" if row["next_attempt_at"] else row["state"]
            for row in letters(self.connection)
        }

    def letter(self, name):
        (row,) = [row for row in letters(self.connection) if row["name"] == name]
        return row

    def retry(self, *names, **options):
        """Retry the letters of some payments, or all."""
        chosen = [str(self.position(name)) for name in names] or ["--all"]
        return decide(self.connection, "retry", *chosen, **options)

    def discard(self, *names):
        chosen = [str(self.position(name)) for name in names]
        return decide(self.connection, "discard", *chosen, "--yes")

    def let_next_attempts_be_due(self):
        self.connection.execute(
            "UPDATE reservation.dead_letters SET next_attempt_at = now()"
            " WHERE next_attempt_at IS NOT NULL"
        )


def number(name):
    """Return the number of the till that a payment is named by."""
    return name.rstrip("abcdefghijklmnopqrstuvwxyz")


def pay(name, amount=1):
    return Pay(name, number(name), amount)


def letters(connection):
    """Return the rows of all letters in the order of the log, each with its payment's name."""
    found = connection.execute(
        "SELECT to_jsonb(l) || jsonb_build_object('name', m.data->>'payId')"
        " FROM reservation.dead_letters l LEFT JOIN message_store.messages m"
        " USING (global_position) ORDER BY l.global_position"
    )
    return [row for (row,) in found]


def reasons(connection):
    """Return the state, the reason and the attempts of each letter."""
    return [(row["state"], row["reason"], row["attempts"]) for row in letters(connection)]


def decide(connection, *arguments, **options):
    """Run a command on dead letters, and return what it printed as JSON."""
    printed = dead_letters(connection, *arguments, "--json", **options).splitlines()
    # Consumers in other threads may log meanwhile.
    return next(json.loads(line) for line in printed if line.startswith("{"))


def dead_letters(connection, *arguments, status=0, data=None):
    """Run a command on dead letters, and return what it printed, or why it refused."""
    env = {"RESERVATION_DATABASE_URL": address(connection), "COLUMNS": "300"}
    done = invoke_cli("dead-letters", *arguments, env=env, input=data)
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


def write_raw(connection, stream_name, type_, data=None, metadata=None):
    """Write a message as any client can, whatever its shape; return its global position."""
    data, metadata = (
        one if one is None or isinstance(one, Jsonb | str) else Jsonb(one)
        for one in (data, metadata)
    )
    connection.execute(
        "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, %s, %s, %s)",
        [stream_name, type_, data, metadata],
    )
    query = "SELECT max(global_position) FROM message_store.messages"
    return connection.execute(query).fetchall()[0][0]


def statements(monkeypatch, work):
    """Do some work, and return how many statements it sent."""
    execute, counted = psycopg.Cursor.execute, Counter()

    def counting(self, *arguments, **options):
        counted["statements"] += 1
        return execute(self, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(psycopg.Cursor, "execute", counting)
        work()
    return counted.total()


@contextlib.contextmanager
def case(name):
    """Name the case that fails, of a table whose cases share a store."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"The case is {name}.")
        raise


@contextlib.contextmanager
def sigint_taken_over():
    """Take SIGINT over as a consumer's process does: a KeyboardInterrupt is then the code's."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Letter(NamedTuple):
    """A message that could not be handled, or that waits behind one."""

    stream_name: str
    state: str
    reason: str
    error: str
    waits: bool


def stored_letters(connection: Connection[Any]) -> list[Letter]:
    """Return all dead letters, in the order of the log."""
    rows = connection.execute(
        "SELECT stream_name, state, reason, error, next_attempt_at IS NOT NULL "
        "FROM reservation.dead_letters ORDER BY global_position"
    )
    return [Letter(*row) for row in rows]


def stored_letter(connection: Connection[Any]) -> Letter:
    """Return the only dead letter."""
    (found,) = stored_letters(connection)
    return found


def retry_all(connection: Connection[Any]) -> None:
    """Have all dead letters handled again, as an operator does."""
    connection.execute(
        "UPDATE reservation.dead_letters SET state = 'waiting', next_attempt_at = now()"
        " WHERE state = 'dead'"
    )


def read_again(connection: Connection[Any], position: int = 0) -> None:
    """Set every position back, so that consumers read stored messages again."""
    connection.execute(
        "UPDATE reservation.moves SET position = least(position, %s), message_id = NULL",
        [position],
    )


def hold_up_commits(connection: Connection[Any]) -> str:
    """Let commits of new accounts wait for advisory lock 1; return what counts those."""
    connection.execute(
        "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0 AS $$ "
        "BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END $$; "
        "CREATE CONSTRAINT TRIGGER dawdle AFTER INSERT ON message_store.messages "
        "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
        "WHEN (NEW.type = 'Opened') EXECUTE FUNCTION dawdle()"
    )
    return "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


class Killer:
    """Ends the session that writes, after so many statements that write, or as it commits."""

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection
        connection.execute(
            """
            CREATE SEQUENCE public.written;
            CREATE TABLE public.killed (at bigint);
            CREATE FUNCTION public.kill() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
              IF nextval('public.written') = (SELECT at FROM public.killed) THEN
                PERFORM pg_terminate_backend(pg_backend_pid());
              END IF;
              RETURN NULL;
            END $$;
            CREATE CONSTRAINT TRIGGER kill_at_commit AFTER INSERT ON message_store.messages
            DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.kill();
            """
        )
        tables = connection.execute(
            "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname IN"
            " ('message_store', 'reservation') AND tablename NOT IN ('members', 'heartbeats')"
        ).fetchall()
        for (table,) in tables:
            connection.execute(
                f"CREATE TRIGGER kill AFTER INSERT OR UPDATE ON {table}"
                " FOR EACH STATEMENT EXECUTE FUNCTION public.kill()".encode()
            )

    def set(self, at: int) -> None:
        """Kill the next session that writes at its n-th statement; 0 for none."""
        self._connection.execute("DELETE FROM killed; SELECT setval('written', 1, false)")
        self._connection.execute("INSERT INTO killed VALUES (%s)", [at])
