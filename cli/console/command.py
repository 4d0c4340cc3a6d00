"""``reservation console``: its options, and its help."""

from pathlib import Path

import click

from cli.common.errors import debug_option
from cli.common.lazy import runs
from cli.common.options import app_dir_option, database_option


@click.command()
@click.argument("apps", metavar="[APP]...", nargs=-1)
@app_dir_option
@database_option
@click.option(
    "--operator-database-url",
    envvar="RESERVATION_OPERATOR_DATABASE_URL",
    show_envvar=True,
    metavar="URL",
    help="The same database with a role that has an operator's rights. Without it the console "
    "shows no actions.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="The address to listen on. Another than this machine's own needs --token-file or "
    "--proxy-header.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8765,
    show_default=True,
    help="The port to listen on; 0 for any that is free.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="A file with the token with which people sign in. Only its owner may read it.",
)
@click.option(
    "--proxy-header",
    metavar="NAME",
    help="The header in which a proxy names who is signed in, such as X-Forwarded-User.",
)
@click.option(
    "--proxy-address",
    "proxy_addresses",
    multiple=True,
    metavar="ADDRESS",
    help="An address or network of the proxy, such as 10.0.0.5 or 10.1.0.0/16. Headers of others "
    "are ignored. Repeat it for several.",
)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="A name by which browsers may call the console, beside that of --host, such as "
    "console.example.com. Repeat it for several.",
)
@debug_option
@runs("cli.console.serving:serve", "console")
def console() -> None:
    """Show the store in a browser: what flows, what failed, and the story of each key.

    Shows every consumer of the store, and draws the components APP as they are declared. It reads
    with the role of --database-url, for which an auditor's rights are enough, and acts with that
    of --operator-database-url.

    Without --token-file and --proxy-header, it prints an address with a token that is valid until
    it ends. Ctrl-C ends it.

    \b
    Examples:
      reservation console bank:account
      reservation console bank:account --operator-database-url postgresql://operator@db/bank
      reservation console --host 0.0.0.0 --token-file console-token --allowed-host console.example
      reservation console --proxy-header X-Forwarded-User --proxy-address 127.0.0.1
    """
