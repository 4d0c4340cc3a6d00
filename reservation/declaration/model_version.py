"""One version of a read model: its schemas, and the function that makes its tables."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from psycopg import Connection

from reservation.errors import DeclarationError

# Characters. The scratch schema of `reservation models verify` has the longest name that is made
# of it, and PostgreSQL takes names of 63.
_LONGEST = 40

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_LIKE_A_VERSION = re.compile(r".*_[0-9]+")
_TAKEN = frozenset({"public", "information_schema", "message_store", "reservation"})

# Any: rows of different types.
Tables = Callable[[Connection[Any]], object]


@dataclass(slots=True)
class ModelVersion:
    """One version of a read model.

    Attributes:
        name: the name of the read model, which is also the schema of the views that readers use.
        version: the number of the version, from 1.
        tables: the function that makes the tables; None if it is not declared yet.
    """

    name: str
    version: int
    tables: Tables | None = None

    @property
    def schema(self) -> str:
        """The schema of the version's tables, which is also the name of its consumers."""
        return schema_of(self.name, self.version)


def schema_of(name: str, version: int) -> str:
    """Return the schema of the tables of a read model's version."""
    return f"{name}_{version}"


def check_model(name: object, version: object) -> None:
    """Make sure that a read model has a name that its schemas can have, and a version."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise DeclarationError(
            f"A read model cannot be named {name!r}, because readers write its name as that of a "
            f"schema; use up to {_LONGEST} of a to z, 0 to 9 and _, such as occupancy"
        )
    if name in _TAKEN or name.startswith("pg_"):
        raise DeclarationError(
            f"A read model cannot be named {name!r}, which is a schema of others; name it otherwise"
        )
    if _LIKE_A_VERSION.fullmatch(name):
        raise DeclarationError(
            f"A read model cannot be named {name!r}, because the schemas of versions end so; leave "
            f"out the number, and give it as version="
        )
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= 999_999:
        raise DeclarationError(
            f"{name}: version={version!r} is not a number of a version; give 1, and 2 once its "
            f"tables or handlers change"
        )
