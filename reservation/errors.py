"""The errors of the framework, in one tree.

    ReservationError
    ├── DeclarationError          a component, or the path to it, does not say what it must
    │   └── AppPathError          "module:attribute" does not lead to a component
    ├── StreamNameError           a text cannot name a stream or a category
    ├── MessageError              one message cannot be handled
    │   ├── DecodeError           its data or metadata is not what its type says
    │   ├── EncodeError           a message to be written is not what its class says
    │   ├── UnknownTypeError      nobody declared its type
    │   ├── UnknownEventError     nobody declared the type of an event of its entity
    │   ├── IdempotenceKeyError   its idempotence key is absent or cannot name a stream
    │   ├── ExpiredError          it is older than the records of handled messages
    │   └── HandlerError          its handler raised
    ├── StoreError                the store refused, or could not be asked
    │   ├── DatabaseUnavailableError
    │   │   └── CommitUnknownError  the connection was lost during a commit
    │   ├── RefusedError          the store cannot hold what was to be stored
    │   ├── SchemaError           the schema is missing, older or newer
    │   │   └── MissingObjectError  one of its tables or functions is missing
    │   ├── MissingRightError     the role lacks a right
    │   ├── SessionError          a pooler gives no session of its own
    │   ├── LogSequenceError      the sequence of global positions is behind the log
    │   ├── LockTimeoutError      another transaction held a lock for too long
    │   ├── StatementCanceledError  a statement was canceled, or took too long
    │   ├── SerializationError    the transaction lost a race with another
    │   ├── ExpectedVersionError  another writer was first
    │   └── MessageIdConflictError  the id is in use for other content
    ├── GroupError                a consumer group is not as it was requested
    ├── StoreReplacedError        a consumer's position was taken in another log
    ├── PositionLostError         another process took over this consumer's position
    └── ArchiveError              an archive cannot be read or continued, or lacks messages

`consumers`, `cli` and `spark_jobs` derive errors of their own from ReservationError. The one that a
program meets is `consumers.Crashed`. `reservation.testing.NotDeterministicError` is the failed
assertion of a test, and so not in the tree.

Each message says what was wrong, which stream, key or file it was about, and what to do. None
carries a payload or a secret.
"""

import uuid
from collections.abc import Sequence


class ReservationError(Exception):
    """Base of all errors of the framework.

    Attributes:
        is_about_data: whether a message, or the code that handles it, is not in order, rather than
            a declaration or the environment.
    """

    is_about_data = False


class DeclarationError(ReservationError):
    """A component's declaration is incomplete or contradicts itself."""


class AppPathError(DeclarationError):
    """An app path such as ``bank:account`` does not lead to a component."""


class StreamNameError(ReservationError):
    """A text cannot serve as the name of a stream or a category."""


class MessageError(ReservationError):
    """One message cannot be handled; what a consumer did for it is rolled back.

    Attributes:
        global_position: that of the message; None where it is not known which one it is.
    """

    is_about_data = True
    global_position: int | None = None


class DecodeError(MessageError):
    """A message's data or metadata does not have the shape that its type declares."""


class EncodeError(MessageError):
    """A message that is to be written does not hold what its class declares."""


class UnknownTypeError(MessageError):
    """A message has a type that the component neither handles nor ignores."""


class UnknownEventError(MessageError):
    """The stream of a message's entity holds an event whose type the component does not declare."""


class IdempotenceKeyError(MessageError):
    """A command has no idempotence key, or one that cannot name a stream."""


class ExpiredError(MessageError):
    """A message is so old that no record says whether it was handled before."""


class HandlerError(MessageError):
    """A handler raised; the exception it raised is the cause of this one."""


class StoreError(ReservationError):
    """The message store refused an operation or could not be asked."""


class DatabaseUnavailableError(StoreError):
    """The database cannot be reached, or the connection to it was lost."""


class CommitUnknownError(DatabaseUnavailableError):
    """The connection was lost before the answer to a commit came, so it may have happened or not.

    Writing again with the same ids is safe, because what is already stored is not written twice.

    Attributes:
        ids: the ids of the messages that were to be written, in their order: those that the caller
            gave, and those that were made for it.
    """

    def __init__(self, message: str, ids: Sequence[uuid.UUID] = ()) -> None:
        super().__init__(message)
        self.ids = tuple(ids)


class SchemaError(StoreError):
    """The schema in the database is missing, or is not the version this package works with."""


class MissingObjectError(SchemaError):
    """A table or function that an installation makes is missing from the schemas."""


class MissingRightError(StoreError):
    """The role of the connection lacks a right that it needs."""


class SessionError(StoreError):
    """A pooler gives a client that needs a session of its own any session of the server."""


class LogSequenceError(StoreError):
    """The sequence of global positions is behind the log, so new messages get positions in use.

    Logical replication leaves it so, and so does a restore of the data alone. Writing again does
    not help: each attempt takes the next position, and a position that happens to be free may be
    one that consumers have passed.
    """


class RefusedError(StoreError):
    """The store cannot hold what was to be stored: a value, a size or a constraint forbids it."""


class LockTimeoutError(StoreError):
    """A lock could not be taken within its time limit; nothing is changed."""


class StatementCanceledError(StoreError):
    """A statement was canceled by a user or by its time limit; nothing is changed."""


class SerializationError(StoreError):
    """The transaction was in a deadlock or had too old a snapshot; run it again."""


class ExpectedVersionError(StoreError):
    """A stream was not at the version that the writer expected: another writer was first."""


class MessageIdConflictError(StoreError):
    """A message id is already in use for a message of other content."""


class GroupError(ReservationError):
    """A consumer group is not as it was requested, or has a member that does not fit."""


class StoreReplacedError(ReservationError):
    """A position was taken in another log: the store was cleared, restored or replaced.

    Attributes:
        consumer: the consumer whose position it is.
        category: the category that it reads.
        position: the position; the highest where several partitions are concerned.
    """

    def __init__(self, consumer: str, category: str, position: int, app: str | None = None) -> None:
        """Say which position it is, and what to run.

        Args:
            consumer: the consumer whose position it is.
            category: the category that it reads.
            position: the position.
            app: the app path of the component, for the command to run; None if unknown.
        """
        super().__init__(
            f"The consumer {consumer} of {category} stands at {position}, whose message is not in "
            f"this store: it was cleared, restored or replaced; see "
            f"docs/how-to/back-up-and-restore.md, and run "
            f"`reservation positions reset {app or 'APP'}`"
        )
        self.consumer = consumer
        self.category = category
        self.position = position


class PositionLostError(ReservationError):
    """Another process took over a position of this consumer; its batch is not committed."""


class ArchiveError(ReservationError):
    """An archive cannot be read or continued, or does not have what was removed from the store."""
