"""What is packed into the zip file for Spark's workers."""

import importlib
import stat
import sys
import zipfile

import pytest

from spark_jobs.common.errors import SparkJobError
from spark_jobs.session.package import build

_APP = """
from bank.messages import Deposit
from helped import CATEGORY
from reservation import Component
component = Component(CATEGORY, id="account_id")
component.handle(Deposit, once=None)(lambda command, entity, context: None)
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
    of_all = list(sys.path)
    monkeypatch.setattr(sys, "path", list(of_all))
    build(tmp_path / "x.zip", "stall.apart.asking:component", tmp_path / "app")
    for name in [name for name in sys.modules if name.partition(".")[0] == "stall"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "x.zip"), *of_all])
    packed = importlib.import_module("stall.apart.asking")
    assert packed.__file__.startswith(str(tmp_path / "x.zip"))


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


def test_a_zip_file_that_cannot_be_written_is_named(tmp_path):
    """A zip file that cannot be written is named in one line with the reason."""
    with pytest.raises(SparkJobError, match=r"cannot be written: No such file"):
        build(tmp_path / "none" / "x.zip")
