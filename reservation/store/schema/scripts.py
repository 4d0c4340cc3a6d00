"""The SQL scripts that make the schemas, in their order, and the versions that they make.

The tables are those of version 1. A numbered script in the folder ``migrations``, such as
``002_letters.sql``, changes them for the next version, and runs once. The functions are those of
the last version, and are made again by each upgrade.
"""

import re
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

MESSAGE_STORE_VERSION = "1.3.0"

MESSAGE_STORE_SCRIPTS = (
    "tables",
    "names",
    "indexes",
    "write",
    "read",
    "planner",
    "views",
    "privileges",
)
# Those of them that a newer version may replace.
REPLACEABLE_SCRIPTS = ("names", "write", "read", "planner", "views", "privileges")
FUNCTION_SCRIPTS = (
    "names",
    "readable",
    "positions",
    "identity",
    "roles",
    "reading",
    "flushing",
    "writing",
    "committing",
    "letter_data",
    "retrying",
    "rates",
    "reserving",
    "reserving_next",
    "few_messages",
    "snapshots",
    "processed",
    "passes",
    "revisions",
    "in_events",
    "states",
    "notice",
    "answers",
    "outcomes",
    "scheduling",
    "scheduled_writing",
    "group",
    "series",
    "breakers",
    "pauses",
    "http",
    "planner",
    "privileges",
)

_SCRIPTS = files("reservation.store.schema.sql")
_MIGRATION = re.compile(r"(\d{3})_\w+\.sql")
_FUNCTION = re.compile(
    rb"^CREATE OR REPLACE (?:FUNCTION|PROCEDURE) reservation\.(\w+)", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Migrations:
    """The scripts that change the tables of version 1, each to the next version.

    Attributes:
        folder: where they are. Other files in it are passed over.
    """

    folder: Traversable

    @property
    def version(self) -> int:
        """The version of the schema after the last of them."""
        return 1 + len(self._scripts())

    def after(self, version: int) -> list[tuple[int, bytes]]:
        """Return the scripts from a version on, each with the version that it makes."""
        return [
            (number, script.read_bytes())
            for number, script in enumerate(self._scripts(), 2)
            if number > version
        ]

    def _scripts(self) -> list[Traversable]:
        scripts = sorted(
            (file for file in self.folder.iterdir() if _MIGRATION.fullmatch(file.name)),
            key=lambda file: file.name,
        )
        for number, script in enumerate(scripts, 2):
            if int(script.name[:3]) != number:
                raise ValueError(f"The migration {script.name} is not number {number}")
        return scripts


MIGRATIONS = Migrations(_SCRIPTS / "migrations")


def script_text(schema: str, name: str) -> bytes:
    """Return a script of a schema, named without its ending."""
    return (_SCRIPTS / schema / f"{name}.sql").read_bytes()


def function_names() -> set[str]:
    """Return the names of the functions that the scripts make in the schema ``reservation``."""
    texts = (script_text("reservation", name) for name in FUNCTION_SCRIPTS)
    return {name.decode() for text in texts for name in _FUNCTION.findall(text)}
