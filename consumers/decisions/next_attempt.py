"""What follows when a handler raised: an attempt after a wait, the last failure, or neither."""

from consumers.dead_letters.failure import HandlerRaisedError
from reservation.component import CategoryDeclaration
from reservation.handlers.retry import next_attempt


def decide_on(error: HandlerRaisedError, declared: CategoryDeclaration, tried: int) -> bool:
    """Note in an error what its message's policy, or the handler itself, says to do next.

    Args:
        error: of the call of the handler.
        declared: what declares its handler.
        tried: how often the message was tried before.

    Returns:
        Whether either says anything; if not, the message is tried again directly.
    """
    retry = declared.retries.get(error.message.type)
    error.exhausted, error.wait = next_attempt(error.__cause__, retry, tried)
    return error.is_decided
