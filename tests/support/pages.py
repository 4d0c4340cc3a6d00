"""Reading the README and the pages of docs/."""

import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Block(NamedTuple):
    """A fenced block of a page, the line it starts at, and its text."""

    language: str
    line: int
    text: str


def blocks(page: Path, language: str) -> list[Block]:
    """Return a page's blocks in a language, in order; in a list they are indented."""
    return [block for block in all_blocks(page) if block.language == language]


def all_blocks(page: Path) -> list[Block]:
    """Return a page's blocks in all languages, in order."""
    text = page.read_text()
    found = re.finditer(r"^( *)```(\w*)\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL)
    return [Block(m[2], text.count("\n", 0, m.start()) + 1, textwrap.dedent(m[3])) for m in found]


def prose(page: Path) -> str:
    """Return a page without its fenced blocks."""
    return re.sub(r"^( *)```.*?^\1```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def commands(page: Path) -> Iterator[tuple[str, list[list[str]]]]:
    """Give each shown command line, and the programs with their arguments that it starts."""
    for block in blocks(page, "console"):
        for line in re.findall(r"^\$ (.*)$", block.text, re.MULTILINE):
            words = shlex.split(line, comments=True)
            started: list[list[str]] = [[]]
            for word in words:
                if word in ("|", "&&", ";"):
                    started.append([])
                elif started[-1] or not re.match(r"[A-Z_]+=", word):
                    started[-1].append(word)
            yield line, started


def anchors(page: Path) -> set[str]:
    """Return the names by which a link may lead to a heading of a page."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
