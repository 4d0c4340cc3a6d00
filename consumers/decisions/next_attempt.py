"""What follows when a handler raised: an attempt after a wait, the last failure, or neither."""

from consumers.dead_letters.failure import HandlerRaisedError
from reservation.component import CategoryDeclaration
from reservation.handlers.retry import RetryLater


def decide_on(error: HandlerRaisedError, declared: CategoryDeclaration, tried: int) -> bool:
    """Note in an error what its message's policy, or the handler itself, says to do next.

    Args:
        error: of the call of the handler.
        declared: what declares its handler.
        tried: how often the message was tried before.

    Returns:
        Whether either says anything; if not, the message is tried again directly.
    """
    cause, retry = error.__cause__, declared.retries.get(error.message.type)
    if retry is not None and tried + 1 >= retry.attempts:
        error.exhausted = isinstance(cause, RetryLater) or (
            cause is not None and retry.applies_to(cause)
        )
        return error.exhausted
    if isinstance(cause, RetryLater):
        error.wait = cause.after.total_seconds()
    elif retry is not None and cause is not None and retry.applies_to(cause):
        error.wait = retry.interval(tried + 1)
    return error.wait is not None
