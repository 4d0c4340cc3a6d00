"""The details kept of the exceptions for which messages fail, besides class and place."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ErrorDetail:
    """One consumer's choice.

    Attributes:
        text: whether the text and the traceback are stored with the dead letter. They may hold
            what the message holds, and other secrets.
        exceptions: whether the exceptions are kept in memory until the batch is committed, to be
            reported then.
    """

    text: bool = False
    exceptions: bool = False


PLACE_ONLY = ErrorDetail()
