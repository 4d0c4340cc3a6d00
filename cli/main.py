"""The console script ``reservation``."""

import io
import logging
import sys

import click

from cli.common.errors import CommandGroup, debug_option
from cli.common.lazy import LazyCommands

_COMMANDS = LazyCommands(
    {
        "archive": "cli.spark.archive:archive",
        "check": "cli.check.command:check",
        "completion": "cli.completion:completion",
        "console": "cli.console.command:console",
        "dead-letters": "cli.consumers.dead_letters:dead_letters",
        "demo": "cli.demo.command:demo",
        "findings": "cli.store.findings:findings",
        "models": "cli.models.command:models",
        "partitions": "cli.consumers.partitions:partitions",
        "pause": "cli.consumers.pause:pause_command",
        "positions": "cli.consumers.positions:positions",
        "prune": "cli.store.prune:prune",
        "reconcile": "cli.spark.reconcile:reconcile",
        "resume": "cli.consumers.pause:resume_command",
        "retire": "cli.consumers.retire:retire_command",
        "scheduled": "cli.store.scheduled:scheduled",
        "spark": "cli.spark.packaging:spark",
        "start": "cli.consumers.start:start",
        "status": "cli.consumers.status:status",
        "store": "cli.store.schema:store",
        "story": "cli.story.command:story",
    }
)


@click.group(
    cls=CommandGroup, commands=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="reservation", prog_name="reservation")
@debug_option
def main() -> None:
    """Commands that take effect once, however often they are sent.

    \b
    reservation demo                  see it all work, on an embedded PostgreSQL
    reservation store install         put the message store into a database
    reservation start bank:account    run a component's consumers
    reservation start bank:account --workers 4 --partitions 16
                                      the same, in four processes that share the work
    reservation status                see how far they are
    reservation console bank:account  see it all in a browser
    reservation story withdrawal-17   tell what became of one command
    reservation check bank:account    compare a component with the store before it is deployed
    reservation dead-letters list     see what consumers could not handle, and retry it
    reservation positions list        see their positions, and change them
    reservation scheduled list        see what is written later, and cancel it
    reservation models list           see the versions of read models, and switch their views
    reservation pause account --reason "provider migration"
                                      stop its consumers for a while
    reservation resume account        let them go on
    reservation partitions bank:account 32
                                      let more processes share the work
    reservation reconcile bank:account
                                      prove on the data that nothing was lost
    reservation findings list         see which findings of it are accepted, and change that
    reservation archive --help        copy old messages to Parquet, and verify the copy
    reservation spark package         build what Spark's workers need elsewhere
    reservation prune                 remove what is no longer needed
    reservation retire account        remove what is kept of a component that was given up
    reservation store grants --help   give a role only the rights that it needs
    reservation completion bash       let the shell complete all of these

    Exit status: 0 success; 1 a message, a consumer or an invariant is not in order; 2 the command
    could not run.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # other encodings lose a character, not the result
            stream.reconfigure(errors="replace")
    logging.getLogger("psycopg").setLevel(logging.CRITICAL)  # it also raises what matters
