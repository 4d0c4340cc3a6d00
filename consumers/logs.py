"""structlog, set up for a consumer: lines for people on a terminal, JSON for everything else."""

import contextlib
import logging
import os
import sys

import structlog

Log = structlog.typing.FilteringBoundLogger


class _Forgiving:
    """Standard error, whose reader may have gone, or whose disk may be full.

    A log that can not be written must not stop the work that it tells of. Nothing is kept in a
    buffer, which Python would try to write once more, and fail to, when the process ends.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, text: str) -> None:
        """Write a line, if that is possible."""
        with contextlib.suppress(OSError):
            os.write(self._descriptor, text.encode(errors="backslashreplace"))

    def flush(self) -> None:
        """Do nothing: what was written is not in our hands any more."""


def configure_logs(*, level: str = "info") -> None:
    """Send log events to standard error.

    Args:
        level: the least severe level that is shown: debug, info, warning or error.
    """
    # psycopg warns, in lines of its own, of a rollback on a connection that was lost.
    logging.getLogger("psycopg").addHandler(logging.NullHandler())
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if sys.stderr.isatty():
        colors = not os.environ.get("NO_COLOR")
        processors.append(
            structlog.dev.ConsoleRenderer(colors=colors, pad_event_to=0, sort_keys=False)
        )
    else:
        processors += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        # One write for a line and its end, so that two processes do not write into each other's.
        logger_factory=structlog.WriteLoggerFactory(_Forgiving(sys.stderr.fileno())),  # type: ignore[arg-type]
        cache_logger_on_first_use=True,
    )
