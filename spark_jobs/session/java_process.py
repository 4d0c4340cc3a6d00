"""The Java process of Spark's driver, which starts with a session and ends with it.

PySpark keeps its Java process, and thereby the environment that the workers inherit, until Python
ends. A process for each session gives the workers the address of that session's database.
"""

import logging
import os
import signal
import subprocess
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from socketserver import BaseServer
from types import FrameType

from py4j.java_gateway import JavaGateway
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from spark_jobs.common.errors import SparkUnavailableError
from spark_jobs.session.failure import reason

# How long Java may take to end before it is killed, in seconds: after a signal, and else, when it
# may have its classes to store (`spark_jobs.session.classes`).
_AFTER_SIGNAL, _PATIENCE = 20, 600

_STOPPING = (signal.SIGINT, signal.SIGTERM)

_Process = subprocess.Popen[bytes]


@contextmanager
def started(properties: Mapping[str, str], log: Path) -> Iterator[SparkSession]:
    """Open a session in a new Java process, whose output goes to a file; end both at the end.

    Under ``spark-submit``, which has started Java itself, that process is used and goes on.
    """
    _forget()
    gateway = _launched(properties, log)
    signals = _Signals(gateway.proc)
    try:
        SparkContext._gateway, SparkContext._jvm = gateway, gateway.jvm
        with signals, _without_log_of_failed_calls():
            try:
                context = SparkContext(conf=_conf(properties))
                server = context._accumulatorServer
                # Else it prints a traceback where Java is ended while it is connected.
                vars(server)["handle_error"] = _nothing
                vars(server)["shutdown"] = partial(_shut_down, server)
                signals.listen()  # the context has replaced the handler of SIGINT
                session = SparkSession.builder.config(map={**properties}).getOrCreate()
            except Exception as error:
                raise _not_started(error, log) from error
            try:
                yield session
            finally:
                if not signals.have_ended_it:
                    _stop(session)
    finally:
        _forget()
        if gateway.proc is not None:
            with suppress(Exception):  # a process that is gone has no connections
                gateway.shutdown()
            _await_end(gateway.proc, _AFTER_SIGNAL if signals.have_ended_it else _PATIENCE)


def _nothing(*_: object) -> None:
    """Report no error."""


def _shut_down(server: BaseServer) -> None:
    """Let a server end by itself: it takes a second to notice that it should."""
    threading.Thread(target=type(server).shutdown, args=[server], daemon=True).start()


def _stop(session: SparkSession) -> None:
    """Stop a session, which does nothing if Java has ended by itself."""
    with suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # that it was not shut down cleanly
        session.stop()


def _conf(properties: Mapping[str, str]) -> SparkConf:
    return SparkConf().setAll([*properties.items()])


def _launched(properties: Mapping[str, str], log: Path) -> JavaGateway:
    with log.open("wb") as output:
        try:
            return launch_gateway(  # type: ignore[no-untyped-call]
                _conf(properties), {"stdout": output, "stderr": output, "process_group": 0}
            )
        except BaseException as error:
            process = _starting(error)
            if process is not None:
                # Its group: the script that starts Java has another Java make the command.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                _await_end(process, _AFTER_SIGNAL)
            if isinstance(error, Exception):
                raise _not_started(error, log) from error
            raise


def _starting(error: BaseException) -> _Process | None:
    """Return the process that PySpark was starting, which only the frames of functions know."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for name in ("proc", "self"):  # of the function that waits for it, or of Popen's own
            process = frame.f_locals.get(name)
            if isinstance(process, subprocess.Popen) and process.pid is not None:
                return process
    return None


@contextmanager
def _without_log_of_failed_calls() -> Iterator[None]:
    """Keep tracebacks out of the log that Py4J writes besides raising an exception."""

    def is_of_others(record: logging.LogRecord) -> bool:
        return record.module != "java_gateway"

    # Py4J uses the root logger too.
    root, own = logging.getLogger(), logging.getLogger("py4j")
    level = own.level
    root.addFilter(is_of_others)
    own.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        own.setLevel(level)
        root.removeFilter(is_of_others)


def _not_started(error: Exception, log: Path) -> SparkUnavailableError:
    return SparkUnavailableError(f"Spark does not start: {reason(error, log)}")


class _Signals:
    """Ends Java as soon as the handler of SIGINT or SIGTERM raises an exception.

    The exception leaves the connection to Java in the middle of an answer, so that every further
    call, such as those that clean up, would wait for the end of the job.
    """

    def __init__(self, process: _Process | None) -> None:
        self._process = process
        self.have_ended_it = False
        is_main = threading.current_thread() is threading.main_thread()
        found = {number: signal.getsignal(number) for number in _STOPPING}
        self._before = {number: handler for number, handler in found.items() if callable(handler)}
        if process is None or not is_main:
            self._before = {}

    def __enter__(self) -> None:
        self.listen()

    def listen(self) -> None:
        """Take the signals over."""
        for number in self._before:
            signal.signal(number, self._handle)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._handle:  # else somebody else has taken it over
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        try:
            self._before[signal.Signals(number)](number, frame)
        except BaseException:
            if self._process is not None:
                self._process.terminate()
                self.have_ended_it = True
            raise


def _await_end(process: _Process, patience: float) -> None:
    """Close the input whose end lets Java end, and wait for it."""
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _forget() -> None:
    """Let PySpark start anew, whatever it remembers of an earlier process."""
    SparkContext._active_spark_context = None
    SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
