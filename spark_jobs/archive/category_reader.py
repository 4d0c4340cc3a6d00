"""The messages of a category in archives, in the order of their global positions.

In a run each worker has written the messages of each day to a file, in their order. The files of a
run overlap where times are not in the order of positions, so they are merged; each is opened once
its first message is next, and decoded in small portions. What is held in memory does not grow with
the archive. None of it needs Spark.
"""

import heapq
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from reservation.errors import ArchiveError
from reservation.messages.message import StoredMessage
from spark_jobs.archive.archive_folder import Archive
from spark_jobs.archive.manifest import ArchiveManifest
from spark_jobs.archive.messages import bounds, messages, places

_END = 1 << 63


class _File(NamedTuple):
    first: int
    last: int
    path: Path


class ArchiveFolders:
    """Archives of one store, which are read as one; they may be of several components."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._archives = [Archive(folder, None, "") for folder in folders]
        for archive in self._archives:
            archive.require_runs()

    def __str__(self) -> str:
        """Name the folders in errors."""
        return " and ".join(str(archive.folder) for archive in self._archives)

    @property
    def categories(self) -> list[str]:
        """The archived categories."""
        return sorted({name for archive in self._archives for name in archive.after})

    def category(self, name: str) -> "CategoryReader | None":
        """Return a new reader of a category; None if nothing of it is archived."""
        having = [archive for archive in self._archives if archive.head(name)[0]]
        return CategoryReader(having, name) if having else None

    def require_whole(self) -> None:
        """Make sure that all files are those that were archived, by their digests."""
        for archive in self._archives:
            archive.require_whole()

    def require_store(self, store: str | None) -> None:
        """Make sure that none is of a store with another id."""
        for archive in self._archives:
            archive.require_store(store)


class CategoryReader:
    """Reads a category in archives, for one reader, that goes on where it was or reads again.

    Attributes:
        first: the global position of the first archived message.
        ends: the global position and the id of the last message in each of the archives.
        count: how many messages are archived, in the archive that has the most.
    """

    def __init__(self, archives: Sequence[Archive], category: str) -> None:
        self._archives, self._category = archives, category
        self._bounds: dict[Path, _File] = {}
        self._after = _END  # behind which `_ahead` begins; nothing is known yet
        self._ahead: list[StoredMessage] = []
        self._rest: Iterator[StoredMessage] = iter(())
        self.first = min(run.categories[category].first for _, run in self._runs(0))
        self.ends = [_head(archive, category) for archive in archives]
        self.count = max(archive.counts[category] for archive in archives)

    @property
    def last(self) -> int:
        """The global position up to which all messages of the category are archived."""
        return max(position for position, _ in self.ends)

    def read(self, after: int, limit: int, max_bytes: int) -> Sequence[StoredMessage]:
        """Return the next messages behind a global position; none at the end.

        They end with the message whose data and metadata bring those of all to so many bytes. What
        was returned last can be read again at no cost.
        """
        reached = self._ahead[-1].global_position if self._ahead else self._after
        if not self._after <= after <= reached:
            self._rest, self._ahead = self._messages(after), []
        self._ahead = [one for one in self._ahead if one.global_position > after]
        self._after = after
        found: list[StoredMessage] = []
        size = 0
        for message in self._from(self._ahead[:limit]):
            found.append(message)
            size += _size(message)
            if len(found) >= limit or size >= max_bytes:
                break
        return found

    def at(self, positions: Collection[int]) -> Mapping[int, StoredMessage]:
        """Return the messages at some global positions, as far as they are archived."""
        found: dict[int, StoredMessage] = {}
        for archive, run in self._runs(min(positions, default=0) - 1):
            for file in self._files(archive, run, 0):
                wanted = {n for n in positions if file.first <= n <= file.last} - found.keys()
                if wanted:
                    for message in messages(file.path, min(wanted) - 1, wanted):
                        found[message.global_position] = message
        return found

    def lacking(self, wanted: Collection[tuple[str, int]]) -> set[tuple[str, int]]:
        """Return those that are not archived of some messages, by stream and position there."""
        missing = set(wanted)
        for archive, run in self._runs(0):
            for path in archive.files_of(run, self._category):
                for found in places(path, {stream for stream, _ in missing}) if missing else ():
                    missing.discard(found)
        return missing

    def _from(self, known: Sequence[StoredMessage]) -> Iterator[StoredMessage]:
        """Give what is known, and then what follows, which is known from then on."""
        yield from known
        for message in self._rest:
            self._ahead.append(message)
            yield message

    def _messages(self, after: int) -> Iterator[StoredMessage]:
        """Give all messages behind a global position, each once."""
        of_each = [self._messages_of(archive, after) for archive in self._archives]
        before: StoredMessage | None = None
        for message in heapq.merge(*of_each, key=lambda one: one.global_position):
            if before is None or before.global_position != message.global_position:
                before = message
                yield message
            elif before.id != message.id:
                raise ArchiveError(
                    f"Two archives have other messages of {self._category} at global position "
                    f"{message.global_position}; leave out the one that is of another store"
                )

    def _messages_of(self, archive: Archive, after: int) -> Iterator[StoredMessage]:
        for of, run in self._runs(after):
            if of is archive:
                yield from _merged(self._files(archive, run, after), after)

    def _runs(self, after: int) -> Iterator[tuple[Archive, ArchiveManifest]]:
        """Give the runs that have messages of the category behind a global position."""
        for archive in self._archives:
            for run in archive.runs:
                part = run.categories.get(self._category)
                if part is not None and part.last > after:
                    yield archive, run

    def _files(self, archive: Archive, run: ArchiveManifest, after: int) -> list[_File]:
        """Return the files of a run with messages behind a global position, by their first."""
        part = run.categories[self._category]
        for path in archive.files_of(run, self._category):
            if path not in self._bounds:
                self._bounds[path] = _File(*bounds(path) or (part.first, part.last), path)
        files = [self._bounds[path] for path in archive.files_of(run, self._category)]
        return sorted(file for file in files if file.last > after)


def _merged(files: Sequence[_File], after: int) -> Iterator[StoredMessage]:
    """Give the messages of files behind a global position, in their order."""
    waiting = deque(files)
    # The next message of each open file, by its position; no two are equal.
    heap: list[tuple[int, StoredMessage, Iterator[StoredMessage]]] = []
    while waiting or heap:
        while waiting and (not heap or waiting[0].first < heap[0][0]):
            _push(heap, messages(waiting.popleft().path, after))
        if not heap:
            continue
        _, message, rest = heapq.heappop(heap)
        yield message
        until = min(heap[0][0] if heap else _END, waiting[0].first if waiting else _END)
        for message in rest:
            if message.global_position > until:
                heapq.heappush(heap, (message.global_position, message, rest))
                break
            yield message


def _push(
    heap: list[tuple[int, StoredMessage, Iterator[StoredMessage]]], rest: Iterator[StoredMessage]
) -> None:
    message = next(rest, None)
    if message is not None:
        heapq.heappush(heap, (message.global_position, message, rest))


def _head(archive: Archive, category: str) -> tuple[int, str]:
    position, message_id = archive.head(category)
    return position, message_id or ""


def _size(message: StoredMessage) -> int:
    """Return about how many bytes the data and metadata of a message have."""
    return len(message.data or "") + len(message.metadata_json or "")
