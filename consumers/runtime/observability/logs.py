"""structlog, set up for a consumer: lines for people on a terminal, JSON for everything else."""

import contextlib
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

import structlog

from consumers.runtime.observability.spans import add_span


class Log:
    """A consumer's logger, for all that its process does.

    Each event has the ``consumer`` and the ``category`` that it reads. Where the category has
    several partitions, each event has those ``partitions`` that are held at the time.
    """

    # Any: structlog's loggers have no common type.
    def __init__(self, consumer: str, category: str, logger: Any = None) -> None:
        self._log: structlog.typing.FilteringBoundLogger = (logger or structlog.get_logger()).bind(
            consumer=consumer, category=category
        )

    def holds(self, partitions: Sequence[int]) -> None:
        """Add these partitions to each event from now on."""
        self._log = self._log.bind(partitions=list(partitions))

    # Any: what JSON has a form for.
    def info(self, event: str, **fields: Any) -> None:
        """Log what is normal."""
        self._log.info(event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Log what may need attention."""
        self._log.warning(event, **fields)

    def error(self, event: str, **fields: Any) -> None:
        """Log what needs attention."""
        self._log.error(event, **fields)


class _TolerantStderr:
    """Standard error, whose reader may have gone, or whose disk may be full.

    A log that cannot be written must not stop the work. Nothing is buffered: Python would try to
    write the buffer when the process ends, and fail.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, text: str) -> None:
        """Write a line, if that is possible."""
        with contextlib.suppress(OSError):
            os.write(self._descriptor, text.encode(errors="backslashreplace"))

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""


class _StandardHandler(logging.StreamHandler[_TolerantStderr]):
    """Writes what is logged with Python's `logging`, as our own events are written."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  a method of logging
        """Log that a record could not be formatted; `logging` would print it in many lines."""
        structlog.get_logger().error(
            "log_call_failed", logger=record.name, where=f"{record.filename}:{record.lineno}"
        )


def configure_logs(*, level: str = "info") -> None:
    """Send log events to standard error, those of Python's `logging` and its warnings included."""
    least = getattr(logging, level.upper())
    # One write for a line and its end, so that two processes do not write into each other's.
    output = _TolerantStderr(sys.stderr.fileno())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        add_span,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendering = _rendering()
    structlog.configure(
        processors=[*shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.WriteLoggerFactory(output),  # type: ignore[arg-type]
        cache_logger_on_first_use=True,
    )
    handler = _StandardHandler(output)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                structlog.stdlib.add_logger_name,
                structlog.stdlib.ExtraAdder(),
                *shared,
            ],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    root = logging.getLogger()
    for former in [one for one in root.handlers if isinstance(one, _StandardHandler)]:
        root.removeHandler(former)
    root.addHandler(handler)
    root.setLevel(least)
    logging.captureWarnings(True)
    # psycopg warns, in lines of its own, of a rollback on a connection that was lost.
    psycopg = logging.getLogger("psycopg")
    psycopg.addHandler(logging.NullHandler())
    psycopg.propagate = False


def _rendering() -> list[structlog.typing.Processor]:
    """Return what makes a line of an event: for people on a terminal, else JSON.

    Tracebacks are those of Python. The one of rich, which structlog prefers where it is installed,
    shows the local variables of each frame.
    """
    if not sys.stderr.isatty():
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    return [
        structlog.dev.ConsoleRenderer(
            colors=not os.environ.get("NO_COLOR"),
            pad_event_to=0,
            sort_keys=False,
            exception_formatter=structlog.dev.plain_traceback,
        )
    ]
