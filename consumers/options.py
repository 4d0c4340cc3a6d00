"""Consumers' options: one record, made once and handed down whole."""

from dataclasses import dataclass

from reservation.store.argument_checks import check_batch_bytes, check_batch_size

# Of data and metadata, in UTF-8. A batch ends with the message that reaches them.
DEFAULT_BATCH_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a process's consumers, from the command line or a program.

    Attributes:
        batch_size: how many messages to handle in one transaction.
        batch_bytes: how many bytes of their data and metadata.
        partitions: how many each category is to have; None for as many as it has, and 1 at first.
        stop_on_error: whether a consumer ends at a message that cannot be handled.
        keep_text: whether the text and the traceback of exceptions are stored with dead letters.
        debug: whether the tracebacks of exceptions are logged.
        grace: seconds that stopping may take; None for no limit.
        stuck_after: seconds without a sign of life in the call for a message after which the
            process is replaced, where a host can do so.
        log_level: the least severe level that a process of its own logs.
    """

    batch_size: int = 1000
    batch_bytes: int = DEFAULT_BATCH_BYTES
    partitions: int | None = None
    stop_on_error: bool = False
    keep_text: bool = False
    debug: bool = False
    grace: float | None = None
    stuck_after: float = 60.0
    log_level: str = "info"

    def __post_init__(self) -> None:
        """Refuse sizes that no batch can have."""
        check_batch_size(self.batch_size)
        check_batch_bytes(self.batch_bytes)
