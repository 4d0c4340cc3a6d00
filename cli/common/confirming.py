"""Asking before something is done that cannot be undone, unless the caller has confirmed it."""

import sys
from collections.abc import Sequence

import click

from cli.common.errors import CommandError

yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


def confirm(lines: Sequence[str], question: str) -> None:
    """Print lines and ask whether to go on."""
    if not sys.stdin.isatty():
        raise CommandError(
            f"{'; '.join(lines)}; there is no terminal to ask on; give --yes to confirm"
        )
    click.echo("\n".join(lines), err=True)
    click.confirm(f"{question}?", abort=True, err=True)
