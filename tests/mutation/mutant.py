"""One change in one file, and the file with the change in it."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change that a test has to notice.

    Attributes:
        path: the file, from the root of the tree.
        start: where the change begins, in bytes.
        end: where it ends.
        text: what is put there.
        lines: the lines of the file whose tests are to notice it.
        query: in SQL, the named query or the function that it is in; else "".
    """

    path: str
    start: int
    end: int
    text: bytes
    lines: range
    query: str = ""

    def applied(self, content: bytes) -> bytes:
        """Return the file's content with the change in it."""
        return content[: self.start] + self.text + content[self.end :]

    def description(self, root: Path) -> str:
        """Return the change and its place on one line."""
        content = (root / self.path).read_bytes()
        line = content.count(b"\n", 0, self.start) + 1
        before = " ".join(content[self.start : self.end].decode().split())
        after = " ".join(self.text.decode().split())
        return f"{self.path}:{line}: {before} -> {after or 'nothing'}"
