"""The commands of the command line, for tests that look at each of them."""

from collections.abc import Iterator

import click


def every_command(
    command: click.Command, *path: str
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Give the words that lead to each command and group, and the command."""
    yield path, command
    if isinstance(command, click.Group):
        for name, one in command.commands.items():
            yield from every_command(one, *path, name)


def leaves(command: click.Command) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Give the same of the commands that are not groups."""
    return ((path, one) for path, one in every_command(command) if not isinstance(one, click.Group))
