"""What Spark is given: properties, and the address of the database."""

from pathlib import Path

import pytest
from psycopg import conninfo

from spark_jobs.common.address import address_for_workers
from spark_jobs.common.errors import SparkSettingError
from spark_jobs.session import settings


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://u@db.example:6432/bank?sslmode=require",
        "host=db.example port=6432 user=u dbname=bank sslmode=require",
    ],
)
def test_workers_get_all_of_an_address_without_a_secret(address):
    """An address without a secret is passed to workers in full, however it is written."""
    assert conninfo.conninfo_to_dict(address_for_workers(address)) == {
        "user": "u",
        "host": "db.example",
        "port": "6432",
        "dbname": "bank",
        "sslmode": "require",
    }


def test_what_variables_add_is_passed_on_but_no_file_and_no_secret(monkeypatch):
    """Variables of the driver are passed on, but no secret and no file of the driver."""
    variables = {"HOST": "db.example", "USER": "u", "PASSWORD": "hunter2", "PASSFILE": "/a"}
    for name, value in variables.items():
        monkeypatch.setenv(f"PG{name}", value)
    passed_on = conninfo.conninfo_to_dict(address_for_workers("dbname=bank passfile=/b"))
    expected = {"host": "db.example", "user": "u", "dbname": "bank", "passfile": "/b"}
    assert passed_on == expected


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://u:hunter2@db.example/bank",
        "postgresql://u@db.example/bank?password=hunter2",
        "service=bank password=hunter2",
        "dbname=bank sslpassword=hunter2",
        "postgresql://u:p@ss@db.example/bank?nonsense",
    ],
)
def test_nothing_is_passed_on_of_an_address_that_holds_a_secret(address):
    """Of an address with a secret nothing is passed on; workers use their environment."""
    assert address_for_workers(address) is None
    properties = settings.cluster_properties("spark://h:7077", address, Path("/x"))
    assert "hunter2" not in str(properties)
    assert not any("RESERVATION_DATABASE_URL" in key for key in properties)


@pytest.mark.parametrize(
    "pair",
    [
        "spark.ssl.keyPassword=hunter2",
        "spark.hadoop.fs.s3a.access.key=hunter2",
        "spark.hadoop.fs.s3a.secret.key=hunter2",
        "spark.kubernetes.authenticate.oauthToken=hunter2",
        "spark.executorEnv.PGPASSWORD=hunter2",
        "spark.executorEnv.RESERVATION_DATABASE_URL=postgresql://u:hunter2@h/d",
        "spark.executorEnv.RESERVATION_DATABASE_URL=host=h password = hunter2",
        "spark.executorEnv.X=postgresql://h/d?sslpassword=hunter2",
        "spark.executorEnv.X=postgres://u:hunter2@h/d",
        "spark.executorEnv.X=postgresql://u:hunter2%2F@h1:1,h2:2/d",
        "spark.executorEnv.X=postgresql://:hunter2@h/d",
        "spark.executorEnv.X=postgresql://u:hunter2/x@h/d",
        "spark.executorEnv.X=postgresql://u:hunter2 x@h/d?password=hunter2",
        "spark.executorEnv.X=postgresql://h/d?user=u&password=hunter2",
        "spark.executorEnv.X=postgresql://h/d?user=u&pass%77ord=hunter2",
        "spark.executorEnv.X=postgresql://h/d?scram_client_key=hunter2",
        "spark.executorEnv.X=POSTGRESQL://U:hunter2@H/D",
        "spark.executorEnv.X=jdbc:postgresql://h/d?user=u&password=hunter2",
        "spark.executorEnv.X=jdbc:postgresql:d?PASSWORD=hunter2",
        "spark.executorEnv.X=jdbc:sqlserver://h;user=u;password=hunter2",
        "spark.executorEnv.X=host=h\tpassword\t=\t'hunter2'",
        "spark.executorEnv.X=host=h PGPASSWORD=hunter2",
        'spark.executorEnv.X={"password": "hunter2"}',
        "spark.driver.extraJavaOptions=-Durl=postgresql://u:hunter2@h/d",
        "spark.driver.extraJavaOptions=-Da=b -Djavax.net.ssl.keyStorePassword=hunter2",
        "SPARK.executorEnv.PGPASSWORD=hunter2",
        "spark.executorEnv.pgpassword=hunter2",
        "spark.hadoop.javax.jdo.option.ConnectionPassword=hunter2",
        "spark.hadoop.fs.azure.account.key.x.blob.core.windows.net=hunter2",
        "spark.datasource.db.pwd=hunter2",
        "postgresql://u:hunter2@h/d?sslmode=require",
        "hunter2",
        "password=hunter2",
    ],
)
def test_a_property_that_holds_a_credential_is_refused(pair):
    """A property with a credential is refused in an error that does not repeat it."""
    with pytest.raises(SparkSettingError) as caught:
        settings.parse_conf([pair])
    assert "hunter2" not in str(caught.value) or pair == "hunter2"


def test_a_property_that_refers_to_a_credential_is_passed_on():
    """Properties that refer to files or Kubernetes secrets are passed on."""
    given = {
        "spark.kubernetes.executor.secretKeyRef.PGPASSWORD": "reservation:password",
        "spark.kubernetes.executor.secrets.reservation": "/etc/reservation",
        "spark.kubernetes.authenticate.oauthTokenFile": "/a",
        "spark.executorEnv.PGPASSFILE": "/a",
        "spark.executorEnv.RESERVATION_DATABASE_URL": "postgresql://u@h:5432/d?a=b",
        "spark.security.credentials.hive.enabled": "false",
        "spark.driver.extraJavaOptions": "-Da=b -Dc=d -Djavax.net.ssl.passwordFile=/a",
        "spark.executorEnv.A": "postgresql://postgres:@/postgres?host=/run/postgresql",
        "spark.executorEnv.B": "host=h user=u passfile=/a service=bank",
        "spark.executorEnv.C": "jdbc:postgresql://h:5432/d?user=u&sslmode=require",
        "spark.executorEnv.D": "postgresql://u@[::1]:5432/d",
        "spark.eventLog.dir": "hdfs://namenode:8020/logs",
        "spark.jars.packages": "org.postgresql:postgresql:42.7.3",
    }
    assert settings.parse_conf([f"{key}={value}" for key, value in given.items()]) == given


@pytest.mark.parametrize(
    ("master", "local", "loopback"),
    [
        ("local", True, False),
        ("local[*]", True, False),
        ("local[4,2]", True, False),
        ("spark://127.0.0.1:7077", False, True),
        ("spark://[::1]:7077,localhost:7078", False, True),
        ("spark://127.0.0.1:7077,db.example:7077", False, False),
        ("yarn", False, False),
        ("k8s://https://127.0.0.1:6443", False, False),
    ],
)
def test_only_a_driver_without_other_machines_binds_to_loopback(master, local, loopback, tmp_path):
    """The driver binds to loopback only if no other machine takes part."""
    assert (settings.is_local(master), settings.is_on_loopback(master)) == (local, loopback)
    if not local:
        properties = settings.cluster_properties(master, "", tmp_path)
        assert ("spark.driver.bindAddress" in properties) is loopback
        assert ("spark.local.dir" in properties) is loopback
        assert "spark.sql.shuffle.partitions" not in properties
