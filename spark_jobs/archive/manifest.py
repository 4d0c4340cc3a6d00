"""What each run of an archive says of itself, in a file beside the data."""

import hashlib
from datetime import datetime

import msgspec

from spark_jobs.common.files import File


class DayChecksums(msgspec.Struct, frozen=True):
    """How many messages a day has, and their checksum (`spark_jobs.snapshot.checksums`)."""

    count: int
    hash: str


class ArchivePart(msgspec.Struct, frozen=True):
    """What a run has put there of a category.

    Attributes:
        first, last: the global positions of the first and last message.
        last_id: the id of the last one.
        kept: all of it.
        days: the same by day.
    """

    first: int
    last: int
    last_id: str
    kept: DayChecksums
    days: dict[str, DayChecksums]


class ArchiveManifest(msgspec.Struct, frozen=True):
    """What a run says of itself.

    Attributes:
        version: of the archive's form.
        component: whose messages they are.
        declaration: how its keys were made.
        run: the run's number, from 1.
        time: when the snapshot was taken that it read.
        before: what all messages are older than.
        categories: what there is of each.
        files: every file, by its path within the run's folder.
        store: the id of the store that it read; None if it had none, or the archive is from before
            stores had one.
        digest: the SHA-256 of all of that, as hexadecimal digits.
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
    digest: str = ""

    def digested(self) -> "ArchiveManifest":
        """Return the same with its digest."""
        content = msgspec.json.encode(msgspec.structs.replace(self, digest=""))
        return msgspec.structs.replace(self, digest=hashlib.sha256(content).hexdigest())
