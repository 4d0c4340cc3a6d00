"""structlog, set up for a consumer: lines for people on a terminal, JSON for everything else."""

import logging
import sys

import structlog


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
        processors.append(structlog.dev.ConsoleRenderer())
    else:
        processors += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        # One write for a line and its end, so that two processes do not write into each other's.
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
