"""An archive and the store, read as one.

The archive has each category up to one message, whether or not the store still has the messages
before it. The store is read from there on. Before it, only messages are read that the archive
lacks, because they became visible later. So every message is read once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from reservation.messages.pseudo_event import PSEUDO_EVENT
from reservation.messages.stream_name import ID_SEPARATOR
from spark_jobs.archive.archive_folder import Archive
from spark_jobs.archive.remade import remade
from spark_jobs.common.declaration import Declaration
from spark_jobs.snapshot.categories import Categories
from spark_jobs.snapshot.checksums import COLUMNS
from spark_jobs.source.columns import schema, types_of

_FILES = schema(types_of(COLUMNS))

# The columns in the names of the folders. Declared, so that a category such as 12 stays a text.
_FOLDERS = "category string, day date"


@dataclass(frozen=True, slots=True)
class Union:
    """Reads columns of categories, out of an archive and then out of the store.

    Attributes:
        archive: the archive.
        store: reads the store.
    """

    archive: Archive
    store: Categories

    @property
    def spark(self) -> SparkSession:
        """The session."""
        return self.store.spark

    def __call__(self, categories: Sequence[str], columns: Sequence[str]) -> DataFrame:
        """Return columns of categories, in one DataFrame."""
        read = replace(self.store, after=self.behind({}))
        archived = self.columns(self.archived({}), categories, columns)
        late = self.store.at(self.late({}, categories), categories, columns)
        return archived.unionByName(read(categories, columns)).unionByName(late)

    def behind(self, after: Mapping[str, int]) -> dict[str, int]:
        """Return the global position behind which each category is read in the store."""
        ends = self.archive.after
        return {**after, **{name: max(end, after.get(name, 0)) for name, end in ends.items()}}

    def late(self, after: Mapping[str, int], categories: Sequence[str]) -> DataFrame:
        """Return where the store has messages before the end of the archive that this lacks."""
        until = {
            name: last
            for name, last in self.archive.after.items()
            if name in categories and last > after.get(name, 0)
        }
        if not until:
            return self.spark.createDataFrame([], "global_position bigint")
        read = replace(self.store, after=after, until=until)
        stored = read([*until], ["global_position"])
        return stored.join(self.archived({}), "global_position", "left_anti")

    def at(
        self,
        positions: DataFrame,
        categories: Sequence[str],
        columns: Sequence[str],
        *,
        required: bool = False,
    ) -> DataFrame:
        """Return columns of the messages of categories at some positions, as the store does."""
        positions = positions.select("global_position")
        archived = self.archived({}).join(positions, "global_position", "left_semi")
        # The store may still have what is archived.
        others = positions.join(archived.select("global_position"), "global_position", "left_anti")
        stored = self.store.at(others, categories, columns, required=required)
        return self.columns(archived, categories, columns).unionByName(stored)

    def archived(self, after: Mapping[str, int]) -> DataFrame:
        """Return what is archived behind some global position of each category."""
        return (
            self.spark.read.schema(f"{_FILES}, run int, {_FOLDERS}")
            .option("basePath", str(self.archive.folder))
            .parquet(*self.archive.folders)
            .where(_behind(after))
        )

    def columns(
        self, archived: DataFrame, categories: Sequence[str], columns: Sequence[str]
    ) -> DataFrame:
        """Return columns of what is archived of some categories."""
        declaration = self.store.declaration
        of_function = F.col("type").isin(declaration.by_function)
        fields = F.from_json("data", "map<string, string>")
        entity_id = F.try_element_at(fields, id_field(declaration))
        messages = archived.where(F.col("category").isin(*categories)).withColumns(
            {
                "function_data": F.when(of_function, F.col("data")),
                "entity_id": entity_id,
                "entity_data": F.when(is_decoded(declaration), F.col("data")),
                "version": _version(),
                "is_subscribed": is_subscribed(declaration),
                "starts": _starts(),
                "is_first": _is_first(),
            }
        )
        if self.archive.former:
            is_former = F.col("run").isin(self.archive.former)
            former = remade(messages.where(is_former), declaration)
            messages = messages.where(~is_former).unionByName(former)
        return messages.select(*columns)


def _behind(positions: Mapping[str, int]) -> Column:
    """Return whether a message is behind the position of its category."""
    is_behind = F.lit(True)
    for category, position in positions.items():
        is_behind &= (F.col("category") != category) | (F.col("global_position") > position)
    return is_behind


def id_field(declaration: Declaration) -> Column:
    """Return the field that holds the id of a message's entity, as `columns.sql` has it."""
    field = F.lit(declaration.id)
    for category, types in declaration.subscriptions.items():
        for type_, one in types.items():
            matches = (F.col("category") == category) & (F.col("type") == type_)
            field = F.when(matches, F.lit(one.id)).otherwise(field)
    return field


def is_decoded(declaration: Declaration) -> Column:
    """Return whether only code tells which entity a message is for, as `columns.sql` does."""
    found = F.lit(False)
    for category, types in declaration.decoded_entities.items():
        found |= (F.col("category") == category) & F.col("type").isin(types)
    return found


def is_subscribed(declaration: Declaration) -> Column:
    """Return whether the component handles a message of another category, as `columns.sql` does."""
    correlation = F.get_json_object("metadata", "$.correlationStreamName")
    leads_to = F.substring_index(correlation, ID_SEPARATOR, 1)
    found = F.lit(False)
    for category, types in declaration.subscriptions.items():
        for type_, one in types.items():
            matches = (F.col("category") == category) & (F.col("type") == type_)
            matches &= F.col("global_position") >= one.from_position
            if one.correlated is not None:
                matches &= F.coalesce(leads_to == one.correlated, F.lit(False))
            found |= matches
    return found


def _json(column: str, path: str) -> Column:
    """Return a value in a JSON text as JSON, a number without zeros that change nothing."""
    value = F.to_json(F.try_variant_get(F.try_parse_json(column), path, "variant"))
    return F.regexp_replace(value, r"^(-?[0-9]+)\.0+$|^(-?[0-9]+\.[0-9]*?[1-9])0+$", "$1$2")


def _version() -> Column:
    """Return the version of a message's shape, from its metadata, as `columns.sql` gives it."""
    value = _json("metadata", "$.schemaVersion")
    is_versioned = F.contains("metadata", F.lit('"schemaVersion"')) & value.rlike('^["0-9-]')
    return F.when(is_versioned, value)


def _starts() -> Column:
    """Return whether an event can start its entity's stream, as `columns.sql` gives it."""
    initiates = F.coalesce(_json("data", "$.initiation") == "true", F.lit(False))
    return F.when(F.col("type") != PSEUDO_EVENT, F.lit(True)).otherwise(initiates)


def _is_first() -> Column:
    """Return whether a message is the first of its stream, as `columns.sql` gives it."""
    says = F.when(
        F.contains("metadata", F.lit('"first"')), _json("metadata", "$.localProperties.first")
    )
    is_marked = says == F.col("position").cast("string")
    return (F.col("position") == 0) | F.coalesce(is_marked, F.lit(False))


def of_one_run(spark: SparkSession, folder: str) -> DataFrame:
    """Return the messages in the folder of one run; unreadable files are left out."""
    return (
        spark.read.schema(f"{_FILES}, {_FOLDERS}")
        .option("ignoreCorruptFiles", "true")
        .option("ignoreMissingFiles", "true")
        .parquet(folder)
    )
