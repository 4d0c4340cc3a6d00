"""Archives as `reservation archive` writes them, made without Spark, and read as consumers do."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from psycopg import Connection

from consumers.archived import read_both
from consumers.group.inspection.stored_positions import categories
from consumers.loop.consumer import Consumer
from consumers.loop.draining import CountingTelemetry, UntilDrained
from consumers.options import Options
from consumers.read_models.archives import archived_parts, check_whole
from reservation import ReadModel
from reservation.read_models import schemas
from reservation.read_models.read_model import component_of
from reservation.store.category_part import CategoryPart
from reservation.store.statements import read_part, run
from spark_jobs.archive import archive_folder
from spark_jobs.archive.category_reader import ArchiveFolders
from spark_jobs.archive.manifest import ArchivePart, DayChecksums
from tests.apps.bank import address, session

SCHEMA = pa.schema(
    [
        ("global_position", pa.int64()),
        ("position", pa.int64()),
        ("stream_name", pa.string()),
        ("type", pa.string()),
        ("id", pa.string()),
        ("time", pa.timestamp("us", tz="UTC")),
        ("data", pa.string()),
        ("metadata", pa.string()),
    ]
)

_ROWS = """
SELECT global_position, position, stream_name, type, id::text, time AT TIME ZONE 'UTC' AS time,
       data::text, metadata::text
FROM message_store.messages
WHERE message_store.category(stream_name) = %s AND global_position > %s AND global_position <= %s
ORDER BY global_position
"""


def archive(
    connection: Connection[Any],
    folder: Path,
    *names: str,
    until: int,
    component: str = "hotel",
    file_of: Callable[[int], int] = lambda n: n % 3,
    group: int = 4,
) -> Path:
    """Let a run archive categories up to a global position; return the folder.

    A message is in a file by its number, so files overlap, and have many row groups.
    """
    ((store,),) = connection.execute("SELECT reservation.store_id()").fetchall()
    now = datetime.now(UTC)
    with archive_folder.open_archive(folder, component, '{"keys":{}}') as (made, lock):
        place, parts = made.begin(lock), {}
        for category in names:
            after = made.head(category)[0]
            columns = [field.name for field in SCHEMA]
            found = connection.execute(_ROWS, [category, after, until]).fetchall()
            rows = [dict(zip(columns, row, strict=True)) for row in found]
            files = defaultdict(list)
            for n, row in enumerate(rows):
                day = row["time"].astimezone(UTC).date()
                files[f"category={category}/day={day}/part-{file_of(n)}.zstd.parquet"].append(row)
            for path, of_file in files.items():
                (place / path).parent.mkdir(parents=True, exist_ok=True)
                table = pa.Table.from_pylist(of_file, SCHEMA)
                pq.write_table(table, place / path, row_group_size=group, compression="zstd")
            if rows:
                ends = rows[0]["global_position"], rows[-1]["global_position"], rows[-1]["id"]
                parts[category] = ArchivePart(*ends, DayChecksums(len(rows), "0.0"), {})
        written = archive_folder.files_in(place)
        made.put(place, written, time=now, before=now, categories=parts, store=str(store))
    return folder


def remove(connection: Connection[Any], category: str, before: int) -> None:
    """Remove the messages of a category before a global position from the store."""
    connection.execute(
        "DELETE FROM message_store.messages"
        " WHERE message_store.category(stream_name) = %s AND global_position < %s",
        [category, before],
    )


def drain(
    connection: Connection[Any], model: ReadModel, *folders: Path, **options: Any
) -> dict[str, int]:
    """Handle all that archives and store have, as ``reservation start --archive`` does."""
    component, archives, counting = (
        component_of(model),
        ArchiveFolders(folders),
        CountingTelemetry(),
    )
    parts = archived_parts(connection, component, archives)
    check_whole(connection, component, archives)
    schemas.prepare(connection, component, parts)
    given = {"telemetry": counting, **options}
    for category in categories(component):
        consume(connection, model, category, archived=archives.category(category), **given)
    return dict(counting.counts)


def consume(
    connection: Connection[Any],
    model: ReadModel,
    category: str,
    *,
    archived: Any = None,
    telemetry: CountingTelemetry | None = None,
    **options: Any,
) -> None:
    """Run the consumer of a category to its end, without what is checked at a start."""
    component, given = component_of(model), {"telemetry": telemetry, "archived": archived}
    with session(address(connection)) as opened:
        consumer = Consumer(opened, component, category, Options(**options), **given)
        with UntilDrained(opened, component.name, category) as stop:
            consumer.run(stop)


def stored_positions(connection: Connection[Any], category: str, part: CategoryPart) -> list[int]:
    """Return the global positions of a part of a category that the store has."""
    return [one.global_position for one in run(connection, read_part(category, part, 9999, None))]


def positions_of_both(
    connection: Connection[Any], folder: Path, category: str, part: CategoryPart, limit: int
) -> list[int]:
    """Return those of archive and store, up to the end of the archive, read in batches."""
    archived = ArchiveFolders([folder]).category(category)
    assert archived is not None
    found: list[int] = []
    end = archived.last if part.until is None else min(part.until, archived.last)
    after = part.after
    while after < end:
        rest = replace(part, after=after)
        read, batch = read_both(connection, archived, category, rest, limit, 1 << 30)
        assert len(batch) <= limit
        assert read.until is not None
        assert read.until > after
        found += [one.global_position for one in batch]
        after = read.until
    return found
