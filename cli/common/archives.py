"""``--archive``: the archives that consumers of read models read beside the store."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from cli.common.extras import require_extras
from cli.common.lazy import load
from consumers.archived import Archives

# Any: it decorates a command, whatever that takes.
F = TypeVar("F", bound=Callable[..., Any])


def archives_option(what: str) -> Callable[[F], F]:
    """Return the option, which can be repeated; the command gets ``archives``, a tuple of paths."""
    return click.option(
        "--archive",
        "archives",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        multiple=True,
        help=f"{what} Repeat it for archives of several components. Needs the extra `parquet`.",
    )


def opener(folders: Sequence[Path]) -> Callable[[], Archives] | None:
    """Return what opens archives, also in another process; None if there are none."""
    if not folders:
        return None
    require_extras("parquet")
    return partial(load("spark_jobs.archive.category_reader:ArchiveFolders"), tuple(folders))
