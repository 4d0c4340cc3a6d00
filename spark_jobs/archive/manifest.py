"""The manifest of each run of an archive, in a file beside the data."""

import hashlib
from datetime import datetime

import msgspec

from spark_jobs.common.files import File
from spark_jobs.common.given_data import GivenData


class DayChecksums(msgspec.Struct, frozen=True):
    """A day's count of messages, and their checksum (`spark_jobs.snapshot.checksums`)."""

    count: int
    hash: str


class ArchivePart(msgspec.Struct, frozen=True):
    """A run's archived part of a category.

    Attributes:
        first, last: the global positions of the first and last message.
        last_id: the id of the last one.
        kept: count and checksum of all of it.
        days: the same by day.
    """

    first: int
    last: int
    last_id: str
    kept: DayChecksums
    days: dict[str, DayChecksums]


class ArchiveManifest(msgspec.Struct, frozen=True):
    """The manifest of a run.

    Attributes:
        version: the version of the form.
        component: whose messages they are.
        declaration: how its keys were made.
        run: the run's number, from 1.
        time: when the snapshot was taken that it read.
        before: the time that all messages are older than.
        categories: what was archived of each category.
        files: every file, by its path within the run's folder.
        store: the id of the store that it read; None if the store had none.
        given: of the messages that were handled with other data, that data, and who gave it.
        digest: the SHA-256 of all other fields, as hexadecimal digits.
    """

    version: int
    component: str
    declaration: str
    run: int
    time: datetime
    before: datetime
    categories: dict[str, ArchivePart]
    files: dict[str, File]
    store: str | None = None
    given: list[GivenData] = []
    digest: str = ""

    def digested(self) -> "ArchiveManifest":
        """Return the same with its digest."""
        content = msgspec.json.encode(msgspec.structs.replace(self, digest=""))
        return msgspec.structs.replace(self, digest=hashlib.sha256(content).hexdigest())
