"""Exceptions of a user's code: their class, and the deepest line of own code.

A traceback often ends in a library. What its reader looks for is the last line of their own in it.
Own is what belongs neither to the standard library, nor to an installed library, nor to this
project; and the package of a component is own wherever it is installed. Nothing here contains the
text of an exception, because that may repeat what a message holds.
"""

import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path, PurePath
from types import CodeType, TracebackType

# Of each name that is shown, in characters. A class, a function or a file can have any name.
LONGEST = 200

# How many of the exceptions of a chain or a group are looked at.
MOST = 50

# How many of the classes in a group are named.
NAMED = 3

_HOME = Path(__file__).resolve().parent.parent
_PROJECT = ("reservation", "consumers", "cli", "spark_jobs")
# What runs as a script may be anybody's; its file says whose.
_NOT_OWN = frozenset((*_PROJECT, *sys.stdlib_module_names, "__main__"))
_FOREIGN = tuple(
    str(folder) + os.sep
    for folder in (
        Path(os.__file__).parent,
        *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")),
        *(_HOME / name for name in _PROJECT),
    )
)
_LIBRARY = re.compile(r"[\\/](?:site|dist)-packages[\\/]")

# The top-level packages of components.
_own_packages: set[str] = set()


def note_own_code(module: str | None) -> None:
    """Count the top-level package of a module as own code, wherever it is installed."""
    package = (module or "").partition(".")[0]
    if package and package not in _NOT_OWN:
        _own_packages.add(package)


def describe(error: BaseException) -> str:
    """Return the class of an exception of a user's code, and where their code raised it."""
    place, kind = place_of(error), _kind(error)
    shown = kind if place is None else f"{kind} in {place}"
    root = _root_cause(error)
    return shown if root is None else f"{shown}, caused by {_name(type(root))}"


def type_of(error: BaseException) -> str:
    """Return the full name of an exception's class, such as ``urllib.error.HTTPError``.

    Of a group, the classes of the exceptions in it are named too.
    """
    return _kind(error, full=True)


def place_of(error: BaseException) -> str | None:
    """Return where an exception was raised, such as ``charge (shop/payments.py:42)``.

    That is the deepest frame in own code: of the exception itself, of the first in a group, or of
    what the exception was raised from. Where there is none, it is the deepest frame of others;
    where there is no such frame either, None. A file is named from the folder of the app, or of the
    installed package.
    """
    frames = [list(_frames(one.__traceback__)) for one in _related(error)]
    for is_wanted in (_is_own_file, _is_own, _is_of_others):
        for one in frames:
            for code, module, line in reversed(one):
                if is_wanted(code.co_filename, module):
                    return _shown_place(code, module, line)
    return None


def _related(error: BaseException) -> list[BaseException]:
    """Return an exception, those in it and those that it was raised from, the most telling first.

    A group was raised where its tasks were awaited, which says less than where they failed.
    """
    found: dict[int, BaseException] = {}
    waiting = [error]
    while waiting and len(found) < MOST:
        one = waiting.pop()
        if id(one) in found:
            continue
        found[id(one)] = one
        cause = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
        if cause is not None:
            waiting.append(cause)
        if isinstance(one, BaseExceptionGroup):
            waiting += reversed(one.exceptions)
    return sorted(found.values(), key=lambda one: isinstance(one, BaseExceptionGroup))


def _frames(traceback: TracebackType | None) -> Iterator[tuple[CodeType, str, int | None]]:
    while traceback is not None:
        frame = traceback.tb_frame
        yield frame.f_code, str(frame.f_globals.get("__name__", "")), traceback.tb_lineno
        traceback = traceback.tb_next


def _is_of_component(module: str) -> bool:
    return module.partition(".")[0] in _own_packages


def _is_own_file(file: str, module: str) -> bool:
    if file.startswith("<"):
        return False
    if _is_of_component(module):
        return True
    return not (file.startswith(_FOREIGN) or _LIBRARY.search(file))


def _is_own(file: str, module: str) -> bool:
    """Return whether generated code, such as a dataclass's constructor, is that of own code."""
    return file.startswith("<") and (module == "__main__" or _is_of_component(module))


def _is_of_others(file: str, module: str) -> bool:
    is_ours = module.partition(".")[0] in _PROJECT and file.startswith(_FOREIGN)
    return not (is_ours or file.startswith("<frozen"))


def _shown_place(code: CodeType, module: str, line: int | None) -> str:
    path = PurePath(code.co_filename)
    shown = path.name
    parts = module.split(".")
    for name in (f"{'/'.join(parts)}.py", f"{'/'.join(parts)}/__init__.py"):
        if path.as_posix().endswith(f"/{name}"):
            shown = name
    return f"{_shown(code.co_qualname)} ({_shown(shown)}:{line or '?'})"


def _kind(error: BaseException, *, full: bool = False) -> str:
    name = _name(type(error), full=full)
    if not isinstance(error, BaseExceptionGroup):
        return name
    classes = list(dict.fromkeys(_name(type(one), full=full) for one in _members(error)))
    more = " and more" if len(classes) > NAMED else ""
    return f"{name} of {', '.join(classes[:NAMED])}{more}"


def _members(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """Give the first exceptions of a group, and of the groups in it."""
    waiting: list[BaseException] = [group]
    for _ in range(MOST):
        if not waiting:
            return
        one = waiting.pop()
        if isinstance(one, BaseExceptionGroup):
            waiting += reversed(one.exceptions)
        else:
            yield one


def _root_cause(error: BaseException) -> BaseException | None:
    """Return the exception at the beginning of a chain of ``raise … from``; None for none."""
    root, seen = error, {id(error)}
    while root.__cause__ is not None and id(root.__cause__) not in seen:
        root = root.__cause__
        seen.add(id(root))
    return None if root is error else root


def _name(class_: type, *, full: bool = False) -> str:
    module = str(getattr(class_, "__module__", "builtins"))
    if not full or module == "builtins":
        return _shown(class_.__qualname__ if full else class_.__name__)
    return _shown(f"{module}.{class_.__qualname__}")


def _shown(name: str) -> str:
    """Return a name that any log and any database takes."""
    shown = name if name.isprintable() else name.encode("unicode_escape").decode()
    return shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}…"
