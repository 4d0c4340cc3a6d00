"""Commands, and what they run, imported when they are asked for.

The only place that decides what is loaded late: a command's module holds its options and its help,
and `runs` names the function that does the work. So no command imports Spark to show its help, and
none imports what only another command needs. `load` is for what only some runs of a command need.
"""

from collections import UserDict
from collections.abc import Callable, Mapping
from functools import update_wrapper
from importlib import import_module
from typing import Any

import click

from cli.common.extras import require_extras
from cli.common.interrupts import quietly_interrupted


def load(target: str) -> Any:  # Any: whatever has that name
    """Import what a text such as ``package.module:name`` names."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


class LazyCommands(UserDict[str, click.Command]):
    """The commands of a group by name, each imported when it is first asked for."""

    def __init__(self, targets: Mapping[str, str]) -> None:
        super().__init__()
        self._targets = dict(targets)
        self.data = dict.fromkeys(targets, click.Command(None))

    def __getitem__(self, name: str) -> click.Command:
        if name in self._targets:
            with quietly_interrupted():
                self.data[name] = load(self._targets.pop(name))
        return super().__getitem__(name)


def runs(target: str, *extras: str) -> Callable[[Callable[[], None]], Callable[..., None]]:
    """Let a command run a function that is imported only then.

    The decorated function has the command's help text and no body.
    """

    def decorate(described: Callable[[], None]) -> Callable[..., None]:
        def run(*args: object, **options: object) -> None:
            require_extras(*extras)
            load(target)(*args, **options)

        return update_wrapper(run, described)

    return decorate
