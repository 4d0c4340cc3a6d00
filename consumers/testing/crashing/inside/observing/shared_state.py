"""Calls' shared state: the globals of a handler's module, classes, defaults and closures."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from consumers.testing.crashing.inside.observing.fingerprints import fingerprint
from reservation.component import Component

# What an ORM keeps of its models and sessions is large, and changes as it learns.
_ORMS = ("sqlalchemy", "django")


def shared_state(handler: Callable[..., Any]) -> Mapping[str, str]:
    """Return the fingerprint of each thing that calls of a handler share, by its name."""
    function: Any = inspect.unwrap(handler)
    function = getattr(function, "__func__", function)
    if not hasattr(function, "__globals__"):
        return {f"the handler {type(handler).__name__}": fingerprint(vars(handler))}
    return {name: fingerprint(value) for name, value in _shared(function)}


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the names of what was changed, made or removed."""
    return sorted(
        name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    )


# Any: whatever a module holds.
def _shared(function: Any) -> Iterator[tuple[str, Any]]:
    module = function.__module__
    for name, value in list(function.__globals__.items()):
        if name.startswith("__") or isinstance(value, ModuleType | Component) or _is_orms(value):
            continue
        if isinstance(value, type):
            if value.__module__ == module:
                yield from _of_class(value)
        elif inspect.isfunction(value):
            if value.__module__ == module and value.__defaults__:
                yield f"a default argument of {name}", value.__defaults__
        elif not callable(value) or hasattr(value, "__dict__"):
            yield f"the global {name}", value
    if function.__defaults__:
        yield f"a default argument of {function.__name__}", function.__defaults__
    variables = function.__code__.co_freevars
    for name, cell in zip(variables, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:  # it is empty
            continue
        if not isinstance(value, ModuleType | Component | type):
            yield f"the closure's {name}", value


def _of_class(class_: type) -> Iterator[tuple[str, Any]]:
    for name, value in list(vars(class_).items()):
        if (
            not name.startswith("__")
            and not callable(value)
            and not _is_orms(value)
            and not inspect.isdatadescriptor(value)
        ):
            yield f"the class attribute {class_.__name__}.{name}", value


def _is_orms(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] in _ORMS and not isinstance(value, type)
