"""What Spark is given: properties, the address, and the packages in a zip file."""

import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from psycopg import conninfo

from spark_jobs.common.address import address_for_workers
from spark_jobs.common.errors import SparkJobError, SparkSettingError
from spark_jobs.session import settings
from spark_jobs.session.package import build
from tests.clusters import HOME
from tests.processes import run_cli


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


def test_the_zip_file_is_the_same_for_the_same_files_and_works_from_where_it_is(tmp_path):
    """The zip file is reproducible and holds the queries and the app, with its imports."""
    first, other = tmp_path / "one.zip", tmp_path / "other.zip"
    other.write_text("an earlier one")
    for path in (first, other):
        done = run_cli("spark", "package", "-o", str(path), "--app", "bank:account")
        assert done.returncode == 0, done.stderr
    assert first.read_bytes() == other.read_bytes()
    entries = zipfile.ZipFile(first).namelist()
    assert entries == sorted(entries)
    names = [name for name in entries if not name.endswith("/")]
    assert done.stdout == f"{other}: {len(names)} files\n"
    assert {
        "bank/component.py",
        "spark_jobs/source/queries.sql",
        "reservation/store/queries.sql",
    } <= {*names}
    assert {name.partition("/")[0] for name in names} <= {"bank", "reservation", "spark_jobs"}
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", _IMPORTS],
        env={"PYTHONPATH": f"{first}:{HOME.parent}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(first) in done.stdout
    assert [path.name for path in tmp_path.iterdir() if path.name[0] == "."] == []


_IMPORTS = """
import spark_jobs.source.source, reservation
from reservation.app_path import load_component
from reservation.store.schema import install
print(spark_jobs.__file__, load_component("bank:account", None).name)
"""


def test_an_app_in_folders_without_init_works_from_the_zip_file(tmp_path, monkeypatch):
    """Folders that are packages without a file __init__.py are imported from the zip file."""
    (tmp_path / "app" / "stall" / "apart").mkdir(parents=True)
    (tmp_path / "app" / "stall" / "apart" / "asking.py").write_text(
        _APP.replace("from helped", "from stall.helped").replace("from bank", "from stall")
    )
    (tmp_path / "app" / "stall" / "messages.py").write_text(
        "from dataclasses import dataclass\n@dataclass\nclass Deposit:\n    account_id: str\n"
    )
    (tmp_path / "app" / "stall" / "helped.py").write_text("CATEGORY = 'helped'")
    monkeypatch.setattr(sys, "path", list(sys.path))
    build(tmp_path / "x.zip", "stall.apart.asking:component", tmp_path / "app")
    done = subprocess.run(
        [sys.executable, "-P", "-c", "import stall.apart.asking as app; print(app.__file__)"],
        env={"PYTHONPATH": str(tmp_path / "x.zip")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(str(tmp_path / "x.zip"))


def test_a_module_beside_the_app_travels_if_it_is_imported(tmp_path, monkeypatch):
    """Of a folder of single files, those that the component imports are packed."""
    (tmp_path / "helped.py").write_text("CATEGORY = 'helped'")
    (tmp_path / "idle.py").write_text("")
    (tmp_path / "asking.py").write_text(_APP)
    monkeypatch.setattr(sys, "path", list(sys.path))
    build(tmp_path / "x.zip", "asking:component", tmp_path)
    names = {name for name in zipfile.ZipFile(tmp_path / "x.zip").namelist() if "/" not in name}
    assert names == {"asking.py", "helped.py"}


def project(tmp_path, monkeypatch):
    """Make an app as a package with the usual surrounding files; return its folder."""
    folder = tmp_path / "project"
    package = folder / "asked_package"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text(_APP.replace("helped", "asked_package.inner.named"))
    (package / "inner" / "__init__.py").touch()
    (package / "inner" / "named.py").write_text("CATEGORY = 'asked'")
    for name in ("service.conf", ".env", "notes.txt", "query.sql", "inner/query.sql", "a.pem"):
        (package / name).write_text("password=hunter2")
    (tmp_path / "secret").write_text("hunter2")
    (tmp_path / "script.py").write_text("hunter2")
    (package / "linked").symlink_to(tmp_path / "secret")
    (package / "folder").symlink_to(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [name for name in sys.modules if name.startswith("asked_package")]:
        monkeypatch.delitem(sys.modules, name)
    return folder


def travels(folder, output):
    """Return the files of an app that are packed."""
    build(output, "asked_package:component", folder)
    names = zipfile.ZipFile(output).namelist()
    return [name for name in names if name.startswith("asked_package") and name[-1] != "/"]


def test_only_modules_and_declared_data_travel(tmp_path, monkeypatch):
    """Only modules and declared data of an app are packed, and nothing behind links."""
    folder = project(tmp_path, monkeypatch)
    modules = ["__init__.py", "inner/__init__.py", "inner/named.py"]
    output = tmp_path / "x.zip"
    assert travels(folder, output) == [f"asked_package/{name}" for name in modules]
    assert stat.S_IMODE(output.stat().st_mode) == 0o600
    (folder / "pyproject.toml").write_text(
        '[tool.setuptools.package-data]\nasked_package = ["*.sql", "linked"]\n'
    )
    with pytest.raises(SparkJobError, match=r"linked is, or lies behind, a symbolic link that"):
        travels(folder, output)
    (folder / "asked_package" / "linked").unlink()
    assert travels(folder, output) == [f"asked_package/{name}" for name in [*modules, "query.sql"]]


@pytest.mark.parametrize("is_link", [False, True])
def test_a_virtual_environment_in_the_apps_folder_is_not_packed(tmp_path, monkeypatch, is_link):
    """A virtual environment in the app's folder is not packed."""
    folder = project(tmp_path, monkeypatch)
    environment = tmp_path / "elsewhere" if is_link else folder / "venv"
    installed = environment / "lib" / "python3.11" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "an_installed_module.py").write_text("SECRET = 'hunter2'")
    if is_link:
        (folder / "venv").symlink_to(environment)
    sys.path.append(str(folder / "venv" / "lib" / "python3.11" / "site-packages"))
    monkeypatch.delitem(sys.modules, "an_installed_module", raising=False)
    (folder / "asked_package" / "needing.py").write_text("import an_installed_module")
    init = folder / "asked_package" / "__init__.py"
    init.write_text("import asked_package.needing\n" + init.read_text())
    output = tmp_path / "x.zip"
    assert "asked_package/needing.py" in travels(folder, output)
    assert not [name for name in zipfile.ZipFile(output).namelist() if "installed" in name]


@pytest.mark.parametrize("link", ["module.py", "inner"])
def test_a_module_behind_a_link_that_leads_outside_does_not_travel(tmp_path, monkeypatch, link):
    """A module behind a link that leads outside is named in an error."""
    folder = project(tmp_path, monkeypatch)
    place = folder / "asked_package" / link
    if place.is_dir():
        place.rename(tmp_path / "outside")
    else:
        (tmp_path / "outside").write_text("PASSWORD = 'hunter2'")
    place.symlink_to(tmp_path / "outside")
    with pytest.raises(SparkJobError, match=rf"{link}.* symbolic link that leads out of"):
        travels(folder, tmp_path / "x.zip")
    assert not (tmp_path / "x.zip").exists()


_APP = """
from bank.messages import Deposit
from helped import CATEGORY
from reservation import Component
component = Component(CATEGORY, id="account_id")
component.handle(Deposit)(lambda command, entity, context: None)
"""


def test_a_zip_file_that_cannot_be_written_is_named(tmp_path):
    """A zip file that cannot be written is named in one line with the reason."""
    with pytest.raises(SparkJobError, match=r"cannot be written: No such file"):
        build(tmp_path / "none" / "x.zip")
