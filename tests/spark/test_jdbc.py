"""Reading through PostgreSQL's JDBC driver, where its jar is at hand."""

import pytest
from psycopg import conninfo

from bank import account
from reservation import MessageStore
from reservation.postgres.connection import connect
from spark_jobs.common.declaration import Declaration
from spark_jobs.common.errors import SparkSettingError
from spark_jobs.reconciliation.reading.categories import Categories
from spark_jobs.reconciliation.reading.jdbc import Jdbc, jdbc_url
from spark_jobs.snapshot.snapshot import exported_snapshot
from spark_jobs.source.columns import TYPES
from tests.bank import drain
from tests.controls import COMMANDS, LATER, deposit, open_

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("postgresql://auditor:secret@db.example/bank", "PGPASSFILE"),
        ("postgresql:///bank?host=/run/postgresql", "listens to TCP"),
        ("host=one,two dbname=bank", "listens to TCP"),
        ("dbname=bank", "listens to TCP"),
    ],
)
def test_an_address_that_jdbc_cannot_use_is_refused(address, said):
    """An address that JDBC cannot use is refused in one line without its password."""
    with pytest.raises(SparkSettingError, match=said) as refused:
        jdbc_url(address)
    assert "secret" not in str(refused.value)


def test_an_address_is_given_in_the_drivers_form():
    """Any characters in the role and the database's name are escaped for the driver."""
    address = conninfo.make_conninfo(
        host="db.example", port=5433, user="a&b", dbname="b/1", sslmode="require"
    )
    assert jdbc_url(address) == (
        "jdbc:postgresql://db.example:5433/b%2F1?user=a%26b&sslmode=require"
    )


def test_jdbc_reads_the_same_columns(
    jdbc_address, spark, spark_connection, spark_store, spark_database_url
):
    """JDBC reads every column as the data source does, under the same snapshot."""
    if jdbc_address is None:
        pytest.skip("the server listens to a socket only, or the jar of Java's driver is absent")
    spark_store.write([open_(), deposit("d1"), deposit("d1", time=LATER)], COMMANDS)
    drain(spark_connection)
    spark_connection.execute(
        "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, 'Deposit', NULL)",
        ["account:command-<b>"],
    )
    url = jdbc_url(jdbc_address)
    names = [account.command_category, *account.reservation_categories, account.name, "nothing"]
    with exported_snapshot(spark_database_url) as snapshot, connect(spark_database_url) as writer:
        readers = (
            Jdbc(spark, url, snapshot, Declaration.of(account)),
            Categories(spark, snapshot, Declaration.of(account)),
        )
        MessageStore(writer).write(deposit("later"), COMMANDS)
        writer.commit()
        by_jdbc, by_adbc = (
            sorted(read(names, list(TYPES), firsts_of=["account"]).collect(), key=str)
            for read in readers
        )
    assert by_jdbc == by_adbc
    assert len(by_jdbc) == 4 + 1 + 1
