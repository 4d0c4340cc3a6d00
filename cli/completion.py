"""``reservation completion``: the script with which a shell completes the commands."""

import click
from click.shell_completion import get_completion_class

from cli.common.errors import CommandError, debug_option


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
@debug_option
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    Example, for bash:
      reservation completion bash > ~/.local/share/bash-completion/completions/reservation
    """
    class_ = get_completion_class(shell)
    if class_ is None:
        raise CommandError(f"There is no completion for {shell}")
    root = context.find_root()
    click.echo(class_(root.command, {}, "reservation", "_RESERVATION_COMPLETE").source())
