"""The commands of the command line, called within the process of the tests."""

import contextlib
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
from click.testing import CliRunner

from cli.main import main
from tests.processes import EXAMPLES, run_cli


def invoke_cli(
    *arguments: str,
    env: Mapping[str, str] | None = None,
    cwd: Path = EXAMPLES,
    input: str | None = None,  # noqa: A002  as subprocess names it
) -> subprocess.CompletedProcess[str]:
    """Run a command with click's runner; `tests.processes.run_cli` is for what needs a process.

    ``start`` always does, because it sets up logs and signals for the whole of it.
    """
    if "start" in arguments[:2]:
        return run_cli(*arguments, env=dict(env or {}), cwd=cwd)
    with contextlib.chdir(cwd):
        runner = CliRunner()
        done = runner.invoke(main, arguments, input=input, env=env, prog_name="reservation")
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)


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
