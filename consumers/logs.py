"""structlog, set up for a consumer: lines for people on a terminal, JSON for everything else."""

import contextlib
import logging
import os
import sys
from typing import TextIO

import structlog


class _Forgiving:
    """A stream whose reader may have gone, or whose disk may be full.

    A log that can not be written must not stop the work that it tells of.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Write a line, if that is possible."""
        with contextlib.suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        """Hand on what was written, if that is possible."""
        with contextlib.suppress(OSError):
            self._stream.flush()


def configure_logs(*, level: str = "info") -> None:
    """Send log events to standard error.

    Args:
        level: the least severe level that is shown: debug, info, warning or error.
    """
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
        logger_factory=structlog.WriteLoggerFactory(_Forgiving(sys.stderr)),  # type: ignore[arg-type]
        cache_logger_on_first_use=True,
    )
