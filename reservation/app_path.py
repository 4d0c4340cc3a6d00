"""Importing the component that an app path names, as web servers import their application.

``bank:account`` is attribute ``account`` of module ``bank``, imported with the current folder, or
another, on the import path.
"""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from reservation.component import Component
from reservation.declaration.table import declarations
from reservation.errors import AppPathError, StoreReplacedError
from reservation.raised import describe, note_own_code
from reservation.read_models.read_model import ReadModel, component_of

# Our packages, whose names are so common that a user's folder may have them too.
COMMON_NAMES = ("reservation", "consumers", "cli", "spark_jobs")

_HOME = Path(__file__).resolve().parent.parent


def load_component(app: str, app_dir: str | Path | None = ".") -> Component:
    """Import a component, or a read model."""
    module_name, separator, attribute = app.partition(":")
    if not (module_name and separator and attribute):
        raise AppPathError(
            f"{app!r} is not an app path; write module:attribute, for example bank:account"
        )
    if app_dir is not None:
        _put_first(Path(app_dir).resolve())
    note_own_code(module_name)
    declared = _attribute(_module(module_name, app_dir), attribute, app)
    if not isinstance(declared, Component | ReadModel):
        raise AppPathError(
            f"{app} is of type {type(declared).__name__}, not a Component or a ReadModel; name the "
            f"attribute that holds it"
        )
    return component_of(declared)


def refuse_read_model(component: Component[Any], way_out: str) -> None:
    """Refuse a read model where only a component makes sense."""
    model = declarations(component).model
    if model is not None:
        way = way_out.format(app="APP", name=model.name, version=model.version)
        raise AppPathError(f"{component.name} is a version of the read model {model.name}; {way}")


def _put_first(folder: Path) -> None:
    if not folder.is_dir():
        raise AppPathError(f"The app folder {folder} does not exist; name another with --app-dir")
    refuse_common_names(folder)
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def refuse_common_names(folder: Path) -> None:
    """Refuse a folder with a package that would be imported instead of one of ours."""
    if folder == _HOME:
        return
    for name in COMMON_NAMES:
        spec = PathFinder.find_spec(name, [str(folder)])
        if spec is not None and (spec.origin is not None or any((folder / name).glob("*.py"))):
            raise AppPathError(
                f"The app folder {folder} has a package of its own named {name!r}, which is also "
                f"one of reservation's; move the app to a folder of its own and name that with "
                f"--app-dir"
            )


def _module(name: str, app_dir: str | Path | None) -> object:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            looked_in = "" if app_dir is None else f"in {Path(app_dir).resolve()} or "
            raise AppPathError(
                f"There is no module {error.name!r} {looked_in}on the import path; start in the "
                f"folder that holds it, or name that with --app-dir"
            ) from error
        raise AppPathError(
            f"The module {name!r} cannot be imported: it imports {error.name!r}, which is not "
            f"installed"
        ) from error
    except (Exception, SystemExit) as error:
        note_own_code(name)
        raise AppPathError(
            f"The module {name!r} cannot be imported: {describe(error)}: {error}"
        ) from error


def _attribute(module: object, attribute: str, app: str) -> object:
    value = module
    for name in attribute.split("."):
        try:
            value = getattr(value, name)
        except AttributeError as error:
            raise AppPathError(
                f"{app}: {attribute!r} is not in the module; name the attribute that holds "
                f"the component"
            ) from error
    return value


@contextmanager
def app_in_errors(app: str) -> Iterator[None]:
    """Add the app path to errors that name a command to run on it."""
    try:
        yield
    except StoreReplacedError as error:
        raise StoreReplacedError(error.consumer, error.category, error.position, app) from error
