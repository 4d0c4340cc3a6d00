"""Values of structlog's context variables while a component's code handles a message.

The variables are structlog's own, so that its `merge_contextvars` finds them, in whichever way a
program has configured it. `bind_contextvars` looks each of them up by its name and remembers what
they were, at every call. Here that is done once for a batch, because every message pays for it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import structlog

from reservation.messages.message import StoredMessage


# Any: structlog's variables hold whatever is logged.
def _variables(*names: str) -> list[ContextVar[Any]]:
    tokens = structlog.contextvars.bind_contextvars(**dict.fromkeys(names, ""))
    structlog.contextvars.reset_contextvars(**tokens)
    return [tokens[name].var for name in names]


_VARIABLES = _variables("consumer", "category", "type", "message_id", "entity")
_consumer, _category, _type, _message_id, _entity = _VARIABLES


class LogContext:
    """The context of what the code of one component logs for the messages of one category."""

    __slots__ = ("_category", "_consumer")

    def __init__(self, consumer: str, category: str) -> None:
        self._consumer = consumer
        self._category = category

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Run calls of the component's code; afterwards the variables are as they were."""
        tokens = [(variable, variable.set(...)) for variable in _VARIABLES]
        self.leave_message()
        try:
            yield
        finally:
            for variable, token in tokens:
                variable.reset(token)

    def leave_message(self) -> None:
        """Let the variables speak of no message, until the next."""
        _consumer.set(self._consumer)
        _category.set(self._category)
        _type.set(...)
        _message_id.set(...)
        _entity.set(...)

    def enter_entity(self, stream_name: str) -> None:
        """Let the variables speak of an entity that is loaded, until the next."""
        _entity.set(stream_name)

    def enter_message(self, message: StoredMessage, entity: str | None) -> None:
        """Let the variables speak of a message, until the next."""
        if _consumer.get() != self._consumer:  # a handler has cleared them all, or this is a task
            _consumer.set(self._consumer)
            _category.set(self._category)
        _type.set(message.type)
        _message_id.set(message.id)
        _entity.set(... if entity is None else entity)
