"""Commands that take effect once, however often they are sent.

What is public, and keeps its meaning between versions as the changelog says:

- the names in ``__all__`` of this module, their documented parameters, attributes and methods;
- `reservation.testing`, for tests of handlers;
- `reservation.http`, for endpoints with an idempotency key, with the extra ``http``;
- `consumers`, which runs a component in a program, for its names in ``__all__``;
- `spark_jobs.source`, the data source for Spark.

Every other module is private, and so is a name that begins with an underscore. Private modules may
change in any version. All errors are derived from `ReservationError`; their tree is in the
documentation of `reservation.errors`.
"""

from reservation.component import Component
from reservation.context import Context
from reservation.errors import (
    AppPathError,
    CommitUnknownError,
    DatabaseUnavailableError,
    DeclarationError,
    DecodeError,
    EncodeError,
    ExpectedVersionError,
    ExpiredError,
    ForeignPositionError,
    GroupError,
    HandlerError,
    IdempotenceKeyError,
    LockTimeoutError,
    LogSequenceError,
    MessageError,
    MessageIdConflictError,
    MissingObjectError,
    MissingRightError,
    PositionLostError,
    RefusedError,
    ReservationError,
    SchemaError,
    SerializationError,
    SessionError,
    StatementCanceledError,
    StoreError,
    StreamNameError,
    UnknownEventError,
    UnknownTypeError,
)
from reservation.handlers.failed_attempt import FailedAttempt
from reservation.handlers.reject import Reject
from reservation.handlers.retry import Retry, RetryLater
from reservation.idempotence.in_events.message_id import MessageIdInEvents
from reservation.idempotence.in_events.position import PositionInEvents
from reservation.idempotence.processed import Processed
from reservation.idempotence.reserve import ReserveOutcome
from reservation.idempotence.revision import Revisions
from reservation.idempotence.revision_counters import ClockRevisions, DatabaseRevisions
from reservation.idempotence.state_based.states import States
from reservation.idempotence.state_based.strategy import StateBased
from reservation.messages import stream_name
from reservation.messages.message import StoredMessage, follow, followed_id
from reservation.messages.metadata import Metadata
from reservation.messages.pseudo_event import PseudoEvent, Rejection
from reservation.postgres.connection import check_alive, check_alive_async, connect, connect_async
from reservation.store.answers.outcome import Outcome
from reservation.store.answers.question import Question
from reservation.store.async_client import AsyncMessageStore
from reservation.store.client import MessageStore
from reservation.store.notifications import Notices
from reservation.store.schema.install import attach, detach, install
from reservation.store.statements import NO_STREAM
from reservation.store.writing.scheduling import Cancellation, ScheduledWrite
from reservation.store.writing.write import Write

__version__ = "0.1.0"

# The former name of `PositionInEvents`.
Sequence = PositionInEvents

__all__ = [
    "NO_STREAM",
    "AppPathError",
    "AsyncMessageStore",
    "Cancellation",
    "ClockRevisions",
    "CommitUnknownError",
    "Component",
    "Context",
    "DatabaseRevisions",
    "DatabaseUnavailableError",
    "DeclarationError",
    "DecodeError",
    "EncodeError",
    "ExpectedVersionError",
    "ExpiredError",
    "FailedAttempt",
    "ForeignPositionError",
    "GroupError",
    "HandlerError",
    "IdempotenceKeyError",
    "LockTimeoutError",
    "LogSequenceError",
    "MessageError",
    "MessageIdConflictError",
    "MessageIdInEvents",
    "MessageStore",
    "Metadata",
    "MissingObjectError",
    "MissingRightError",
    "Notices",
    "Outcome",
    "PositionInEvents",
    "PositionLostError",
    "Processed",
    "PseudoEvent",
    "Question",
    "RefusedError",
    "Reject",
    "Rejection",
    "ReservationError",
    "ReserveOutcome",
    "Retry",
    "RetryLater",
    "Revisions",
    "ScheduledWrite",
    "SchemaError",
    "Sequence",
    "SerializationError",
    "SessionError",
    "StateBased",
    "StatementCanceledError",
    "States",
    "StoreError",
    "StoredMessage",
    "StreamNameError",
    "UnknownEventError",
    "UnknownTypeError",
    "Write",
    "__version__",
    "attach",
    "check_alive",
    "check_alive_async",
    "connect",
    "connect_async",
    "detach",
    "follow",
    "followed_id",
    "install",
    "stream_name",
]
