"""What a component's own code logs in a started process: as JSON, or for people on a terminal."""

import os
import pty
import subprocess
from dataclasses import dataclass

import pytest

from tests.support.started import PATIENCE, Started, command_line

APP = """
import asyncio, logging, os, signal, warnings
from dataclasses import dataclass
import structlog
from reservation import Component

till = Component("till", id="till_id", attempts=2)
log = logging.getLogger("shop.tills")

@dataclass(frozen=True)
class Pay:
    till_id: str
    number: int = 0

@dataclass(frozen=True)
class Ask:
    till_id: str

@till.handle(Pay, once=None)
def pay(command, entity, context):
    local = "local-secret"
    log.debug("looked up")
    log.info("paying %s", command.number, extra={"terminal": "t7"})
    structlog.get_logger().info("paid", amount=5)
    match command.number:
        case 1:
            try:
                raise KeyError("shown")
            except KeyError:
                log.exception("failed")
        case 2:
            log.info("%d", "argument-secret")
            warnings.warn("soon gone", DeprecationWarning)
            logging.getLogger("psycopg").warning("psycopg-secret")
        case 3:
            raise ValueError("of a handler")
        case 4:
            os.kill(os.getpid(), signal.SIGTERM)

@till.handle(Ask, once=None)
async def ask(command, entity, context):
    if command.till_id == "8":
        await asyncio.sleep(0.1)
    raise ValueError("async-secret")

@till.on_error
def report(error, attempt):
    log.info("reported %s", attempt.outcome)
"""
CATEGORY = "till:command"


@dataclass(frozen=True)
class Pay:
    till_id: str
    number: int


@dataclass(frozen=True)
class Ask:
    till_id: str


@pytest.fixture
def app(tmp_path):
    """Give a folder with an app whose handler logs in each way."""
    (tmp_path / "tills.py").write_text(APP)
    return tmp_path


def write(store, *messages):
    for message in messages:
        store.write(message, f"{CATEGORY}-{message.till_id}")


def test_all_that_a_handler_logs_is_json_with_its_message(connection, store, database_url, app):
    """Also what it logs with Python's `logging`, exceptions and warnings; and it may stop itself.

    A handler that sends SIGTERM to its own process is no fault: its batch is committed.
    """
    write(store, *(Pay(str(number), number) for number in range(5)))
    options = ("--debug", "--log-level", "debug")
    with Started(database_url, "--app-dir", str(app), *options, app="tills:till") as started:
        events = {
            name: started.wait_for(name)
            for name in ("paying 0", "paid", "looked up", "failed", "log_call_failed")
        }
        attempts = [started.wait_for("attempt_failed", attempt=number) for number in (1, 2)]
        started.wait_for("process_died", how="status 0")
        assert started.stop() == 0
        log = started.log
    (first,) = store.read_stream(f"{CATEGORY}-0")
    about = {"consumer": "till", "category": CATEGORY, "type": "Pay", "entity": "till-0"}
    for name in ("paying 0", "paid", "looked up"):
        assert events[name].items() >= (about | {"message_id": first.id}).items()
    assert (events["paying 0"]["terminal"], events["paid"]["amount"]) == ("t7", 5)
    assert [events[name]["level"] for name in ("paying 0", "looked up")] == ["info", "debug"]
    assert events["failed"]["exception"].endswith("KeyError: 'shown'")
    assert events["log_call_failed"]["entity"] == "till-2"
    assert [event["outcome"] for event in attempts] == ["waiting", "dead"]
    for event in attempts:
        assert event["exception"].startswith("Traceback (most recent call last):\n")
        assert event["exception"].endswith("ValueError: of a handler")
    assert all(line.startswith("{") for line in log.splitlines())
    assert "secret" not in log
    rows = connection.execute("SELECT state, reason FROM reservation.dead_letters").fetchall()
    assert rows == [("dead", "handler")]
    assert connection.execute("SELECT max(position) FROM reservation.positions").fetchone() == (5,)


def test_on_a_terminal_the_lines_are_for_people(connection, store, database_url, app):
    """The traceback that a handler logs is Python's own; the last line says why it stopped.

    With `--stop-on-error` that is the first message in the log of those whose calls failed.
    """
    write(store, Pay("0", 0), Pay("1", 1), Ask("8"), Ask("9"))
    primary, secondary = pty.openpty()
    arguments = ("start", "tills:till", "--app-dir", str(app), "--stop-on-error")
    environment = {**os.environ, "RESERVATION_DATABASE_URL": database_url, "NO_COLOR": "1"}
    with subprocess.Popen(command_line(*arguments), env=environment, stderr=secondary) as process:
        os.close(secondary)
        shown = b""
        while part := _read(primary):
            shown += part
        assert process.wait(PATIENCE) == 1
    os.close(primary)
    lines = shown.decode().splitlines()
    # Where another handler fails, a batch with async ones is handled again.
    paying = next(line for line in lines if "paying 0" in line)
    assert "[info" in paying
    assert "message_id=" in paying
    assert "Traceback (most recent call last):" in lines
    assert "KeyError: 'shown'" in lines
    assert any("reported stopped" in line for line in lines)
    assert lines[-1].startswith("Error: The handler of Ask at till:command-8, global position 3 ")
    assert not any("secret" in line or "looked up" in line for line in lines)
    assert not any(line.startswith("{") for line in lines)
    assert connection.execute("SELECT count(*) FROM reservation.dead_letters").fetchone() == (0,)


def _read(terminal):
    """Return what comes next on a terminal; nothing once its other end is closed."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""
