"""The commands of the command line, called within the process of the tests."""

import contextlib
import io
import logging
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest
import structlog
from click.testing import CliRunner

from cli.main import main
from tests.support.started import EXAMPLES, run_cli


class Terminal(io.BytesIO):
    """Input of somebody at a terminal, who answers after something else has happened."""

    def __init__(self, answer: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        super().__init__(f"{answer}\n".encode())
        self._meanwhile = meanwhile

    def isatty(self) -> bool:
        """It is one."""
        return True

    def read1(self, size: int | None = -1) -> bytes:
        """Read the answer."""
        self._meanwhile()
        return super().read1(size)


def invoke_cli(
    *arguments: str,
    env: Mapping[str, str] | None = None,
    cwd: Path = EXAMPLES,
    input: str | io.BytesIO | None = None,  # noqa: A002  as subprocess names it
) -> subprocess.CompletedProcess[str]:
    """Run a command with click's runner; `started.run_cli` is for what needs a process.

    ``start`` always does, because it sets up logs and signals for the whole of it.
    """
    if "start" in arguments[:2] and "--help" not in arguments:
        return run_cli(*arguments, env=dict(env or {}), cwd=cwd)
    with contextlib.chdir(cwd):
        runner = CliRunner()
        done = runner.invoke(main, arguments, input=input, env=env, prog_name="reservation")
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)


def parsed(name: str, *arguments: str) -> dict[str, Any]:
    """Return what a command of the first level would be called with."""
    group = click.Context(main)
    command = main.get_command(group, name)
    assert command is not None
    return command.make_context(name, list(arguments), parent=group).params


def every_command(
    command: click.Command, *path: str
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Give the words that lead to each command and group, and the command."""
    yield path, command
    if isinstance(command, click.Group):
        for name, subcommand in command.commands.items():
            yield from every_command(subcommand, *path, name)


def leaves(command: click.Command) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Give the same of the commands that are not groups."""
    return (
        (path, found)
        for path, found in every_command(command)
        if not isinstance(found, click.Group)
    )


def refuse_start(*arguments: str) -> str:
    """Return what ``start`` writes to standard error in this process, without its log events.

    It must refuse to run.
    """
    with (
        tempfile.TemporaryFile("w+") as stderr,
        contextlib.redirect_stderr(stderr),
        contextlib.chdir(EXAMPLES),
        _logs_restored(),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["start", *arguments], prog_name="reservation")
        stderr.seek(0)
        lines = [line for line in stderr if not line.startswith("{")]
        assert ended.value.code == 2, lines
        return "".join(lines)


@contextlib.contextmanager
def _logs_restored() -> Iterator[None]:
    """Have logs and warnings afterwards as they were before."""
    root, psycopg = logging.getLogger(), logging.getLogger("psycopg")
    before = structlog.get_config() if structlog.is_configured() else {}
    kept = [(one, one.handlers[:], one.level, one.propagate) for one in (root, psycopg)]
    try:
        yield
    finally:
        logging.captureWarnings(False)
        for one, handlers, level, propagate in kept:
            one.handlers[:], one.propagate = handlers, propagate
            one.setLevel(level)
        structlog.reset_defaults()
        if before:
            structlog.configure(**before)


class _Hiding:
    """A finder of modules that finds all that another does, but for some packages."""

    def __init__(self, finder: Any, names: frozenset[str]) -> None:
        self._finder = finder
        self._names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] in self._names:
            return None
        return self._finder.find_spec(name, path, target)


def hide(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let packages be as if they were not installed, for a command that looks for them."""
    hidden = frozenset(names)
    finders = [_Hiding(finder, hidden) for finder in sys.meta_path]
    monkeypatch.setattr(sys, "meta_path", finders)
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
