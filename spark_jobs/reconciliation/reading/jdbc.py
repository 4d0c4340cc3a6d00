"""Categories read through Spark's own JDBC source, where a driver's jar is at hand.

The workers need no Python for it. Each part is a query of its own; that all see one snapshot is
said when a connection is opened, before anything is read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from urllib.parse import quote, urlencode

from psycopg import conninfo, sql
from pyspark.sql import DataFrame, SparkSession

from reservation.postgres.connection import check_address
from reservation.postgres.queries import load_queries
from spark_jobs.common.address import address_for_workers
from spark_jobs.common.declaration import Declaration
from spark_jobs.common.errors import SparkSettingError
from spark_jobs.session.session import parallelism
from spark_jobs.snapshot.snapshot import Snapshot
from spark_jobs.source.columns import schema, types_of
from spark_jobs.source.passes import queries

_SETTINGS = load_queries("spark_jobs.source")["settings"].decode()

_FETCH = 10_000
_RANGES = 2


def jdbc_url(database_url: str) -> str:
    """Return a database's address in the form that the driver reads, without a password.

    The driver takes the password from the file that ``PGPASSFILE`` names, or ``~/.pgpass``.

    Raises:
        SparkSettingError: the address holds a password or names no host that listens to TCP.
    """
    check_address(database_url)
    address = address_for_workers(database_url)
    if address is None:
        raise SparkSettingError(
            "Spark shows the address that JDBC gets, and this one holds a password; leave it out, "
            "and put it into the file that PGPASSFILE names"
        )
    parts = {name: str(value) for name, value in conninfo.conninfo_to_dict(address).items()}
    host = parts.get("host", "")
    if not host or host.startswith(("/", "@")) or "," in host or "service" in parts:
        raise SparkSettingError(
            "JDBC needs one host that listens to TCP: name it in the database's address, with "
            "host=, port=, dbname= and user="
        )
    named = {"user": "user", "sslmode": "sslmode"}
    more = {theirs: parts[ours] for ours, theirs in named.items() if ours in parts}
    database = quote(parts.get("dbname") or parts.get("user", ""), safe="")
    return f"jdbc:postgresql://{host}:{parts.get('port', 5432)}/{database}?{urlencode(more)}"


@dataclass(frozen=True, slots=True)
class Jdbc:
    """Reads columns of categories; see `spark_jobs.analysis.verdicts.judging.Read`.

    Attributes:
        spark: the session.
        url: the address, as `jdbc_url` gives it.
        snapshot: what is read.
        declaration: how keys are made.
        after: the global position behind which each category is read.
    """

    spark: SparkSession
    url: str
    snapshot: Snapshot
    declaration: Declaration
    after: Mapping[str, int] = field(default_factory=dict)

    def __call__(
        self, categories: Sequence[str], columns: Sequence[str], *, firsts_of: Sequence[str] = ()
    ) -> DataFrame:
        """Return columns of categories, in one DataFrame."""
        names = self.snapshot.readable(categories)
        if not names:
            return self.spark.createDataFrame([], schema(types_of(columns)))
        of_all = queries(names, columns, self.declaration, firsts_of)
        number = _RANGES * parallelism(self.spark)
        parts = self.snapshot.parts(of_all, number, after=self.after, until={})
        # An empty store still has the columns.
        parts = parts or [self.snapshot.nothing(of_all[0])]
        return reduce(DataFrame.unionByName, [self._read(part) for part in parts])

    def _read(self, query: str) -> DataFrame:
        snapshot = sql.Literal(self.snapshot.id).as_string(None)
        return (
            self.spark.read.format("jdbc")
            .option("url", self.url)
            .option("driver", "org.postgresql.Driver")
            .option("dbtable", f"(\n{query}\n) AS part")
            .option("fetchsize", _FETCH)
            .option(
                "sessionInitStatement",
                "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY; "
                f"SET TRANSACTION SNAPSHOT {snapshot}; {_SETTINGS}",
            )
            .load()
        )
