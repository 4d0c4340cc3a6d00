"""Read models that no module holds, which the command line cannot name."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from psycopg import Connection

from consumers.read_models import changing, progress, verifying
from consumers.read_models.progress import VersionStatus
from consumers.read_models.verifying import Verification
from reservation import Component, ReadModel
from reservation.postgres.connection import connect
from reservation.read_models import schemas
from reservation.read_models.comparison import Compare, ComparedTable, TableDifferences
from reservation.read_models.read_model import component_of
from spark_jobs.archive.category_reader import ArchiveFolders


def component(model: ReadModel) -> Component[Any]:
    """Return the component that consumers run."""
    return component_of(model)


def prepare(connection: Connection[Any], model: ReadModel) -> None:
    """Make the tables of a model, as every start does."""
    schemas.prepare(connection, component_of(model))


def verify(connection: Connection[Any], model: ReadModel, *archives: Path) -> Verification:
    """Compare a model's rows with those of a rebuild, as ``reservation models verify`` does."""
    opened = ArchiveFolders(archives) if archives else None
    return verifying.verify(connection, component_of(model), opened)


def verify_by(compare_by: Compare, database_url: str, model: ReadModel) -> Verification:
    """Let something else compare the tables, as ``reservation models verify --spark`` does."""
    connections = partial(connect, database_url, autocommit=True)
    return verifying.verify_by(compare_by, connections, component_of(model))


def no_differences(table: ComparedTable, snapshot: str, most: int) -> TableDifferences:
    """Compare nothing."""
    return TableDifferences({"missing": 0, "unexpected": 0, "differing": 0}, [])


def switch(connection: Connection[Any], version: int, within: float = 60.0) -> bool:
    """Let the views show a version of the tests' read model, which may take so many seconds."""
    return changing.switch(connection, "occupancy", version, within)


def remove(connection: Connection[Any], version: int) -> None:
    """Remove a version of the tests' read model."""
    changing.remove(connection, "occupancy", version)


def looks(
    connection: Connection[Any], patch: pytest.MonkeyPatch, meanwhile: Callable[[float], None]
) -> list[VersionStatus]:
    """Return what two looks at versions show, and do something else between them."""
    patch.setattr(progress.time, "sleep", meanwhile)
    return progress.read_versions(connection)
