"""Commands that take effect once, however often they are sent.

What is public, and keeps its meaning between versions as the changelog says, are the names in
``__all__`` of these modules, their documented parameters, attributes and methods:

- this module, for a program's own components and for senders;
- `reservation.errors`: all errors, in one tree under `ReservationError`;
- `reservation.strategies`, for commands without a key;
- `reservation.admin`, to install the schemas;
- `reservation.testing`, for tests of handlers;
- `reservation.http`, for endpoints with an idempotency key, with the extra ``http``;
- `consumers`, which runs a component in a program, and `consumers.testing`;
- `spark_jobs.source`, the data source for Spark.

Every other module is private, and so is a name that begins with an underscore. Private modules may
change in any version.
"""

from reservation.component import Component
from reservation.context import Context
from reservation.declaration.key import Key
from reservation.handlers.breaker import Breaker
from reservation.handlers.failed_attempt import FailedAttempt
from reservation.handlers.rate import Rate
from reservation.handlers.reading import ReadContext, Recorded
from reservation.handlers.reject import Reject
from reservation.handlers.retry import Retry, RetryLater
from reservation.messages import stream_name
from reservation.messages.message import StoredMessage
from reservation.messages.metadata import Metadata
from reservation.messages.upcasting import Upcast
from reservation.read_models.read_model import ReadModel
from reservation.recurring.series import Tick
from reservation.store.answers.outcome import Outcome
from reservation.store.answers.question import Question
from reservation.store.async_client import AsyncMessageStore
from reservation.store.client import MessageStore
from reservation.store.notifications import Notices
from reservation.store.statements import NO_STREAM
from reservation.store.writing.scheduling import Cancellation
from reservation.store.writing.write import Write

__version__ = "0.1.0"

__all__ = [
    "NO_STREAM",
    "AsyncMessageStore",
    "Breaker",
    "Cancellation",
    "Component",
    "Context",
    "FailedAttempt",
    "Key",
    "MessageStore",
    "Metadata",
    "Notices",
    "Outcome",
    "Question",
    "Rate",
    "ReadContext",
    "ReadModel",
    "Recorded",
    "Reject",
    "Retry",
    "RetryLater",
    "StoredMessage",
    "Tick",
    "Upcast",
    "Write",
    "__version__",
    "stream_name",
]
