"""The component that an app path such as `bank:account` names."""

import sys

import pytest

from reservation.app_path import load_component
from reservation.errors import AppPathError

APP = """
from dataclasses import dataclass
from reservation import Component

@dataclass
class Ping:
    id: str

ping = Component("ping", id="id")
ping.handle(Ping)(lambda command, entity, context: None)
class Holder:
    inner = ping
empty = Component("empty", id="id")
number = 3
"""


@pytest.fixture(autouse=True)
def _own_imports(monkeypatch):
    """Forget what a test imports."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_component_is_found_in_the_app_folder(tmp_path):
    """A component is found in the app folder, also behind a dotted attribute."""
    (tmp_path / "found_app.py").write_text(APP)
    assert load_component("found_app:ping", tmp_path).name == "ping"
    assert load_component("found_app:Holder.inner", tmp_path).name == "ping"


@pytest.mark.parametrize(
    ("app", "problem"),
    [
        ("broken_app", "write module:attribute"),
        (":x", "write module:attribute"),
        ("nowhere:x", "There is no module 'nowhere'"),
        ("some.nowhere:x", "There is no module 'some'"),
        ("some_app:nothing", "'nothing' is not in the module"),
        ("some_app:number", "is of type int, not a Component"),
        ("some_app:empty", "handles no command"),
        (
            "raising_app:x",
            r"ZeroDivisionError in <module> \(raising_app.py:1\): div",
        ),
        ("typo_app:x", "cannot be imported: SyntaxError"),
        ("exiting_app:x", "cannot be imported: SystemExit"),
        ("importing_app:x", "imports 'not_there', which is not installed"),
    ],
)
def test_a_path_that_leads_nowhere_is_explained(tmp_path, app, problem):
    """An app path that leads nowhere is an error of one line that names what is missing."""
    (tmp_path / "some_app.py").write_text(APP)
    (tmp_path / "raising_app.py").write_text("1 / 0")
    (tmp_path / "typo_app.py").write_text("def")
    (tmp_path / "exiting_app.py").write_text("raise SystemExit(3)")
    (tmp_path / "importing_app.py").write_text("import not_there")
    with pytest.raises(Exception, match=problem) as caught:
        load_component(app, tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["consumers", "cli", "spark_jobs"])
def test_a_folder_with_a_package_named_like_ours_is_refused(tmp_path, name):
    """A folder with a package named like ours is refused, so the wrong code is not imported."""
    (tmp_path / "some_app.py").write_text(APP)
    (tmp_path / name).mkdir()
    load_component("some_app:ping", tmp_path)  # a folder without Python in it is no package
    (tmp_path / name / "__init__.py").touch()
    with pytest.raises(AppPathError, match=f"a package of its own named '{name}'"):
        load_component("some_app:ping", tmp_path)


def test_a_missing_app_folder_is_named(tmp_path):
    """The error for an app folder that does not exist names it and `--app-dir`."""
    with pytest.raises(AppPathError, match="--app-dir"):
        load_component("x:y", tmp_path / "nowhere")
