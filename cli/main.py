"""The console script ``reservation``."""

import io
import logging
import sys

import click

from cli.common.errors import Group, debug_option
from cli.completion import completion
from cli.consumers.dead_letters import dead_letters
from cli.consumers.partitions import partitions
from cli.consumers.positions import positions
from cli.consumers.start import start
from cli.consumers.status import status
from cli.demo import demo
from cli.spark.archive import archive
from cli.spark.environment import spark
from cli.spark.reconcile import reconcile
from cli.store.prune import prune
from cli.store.schema import store


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="reservation", prog_name="reservation")
@debug_option
def main() -> None:
    """Commands that take effect once, however often they are sent.

    \b
    reservation demo                  see it all work, on an embedded PostgreSQL
    reservation store install         put the message store into a database
    reservation start bank:account    run a component's consumers
    reservation start bank:account --workers 4
                                      the same, with four processes for each category
    reservation status                see where they are
    reservation dead-letters list     see what consumers could not deal with
    reservation positions list        see their positions, and move them
    reservation partitions bank:account 32
                                      let more processes share the work
    reservation reconcile bank:account
                                      prove on the data that nothing was lost
    reservation archive --help        copy old messages to Parquet, and verify the copy
    reservation spark package         build what Spark's workers need elsewhere
    reservation prune                 remove what is not needed any more
    reservation store grants --help   give a role no more rights than it needs
    reservation completion bash       let the shell complete all of these

    Exit status: 0 all is well; 1 a message, a consumer or an invariant is not in order; 2 the
    command could not run.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # where it is not UTF-8, a sign is lost, no result
            stream.reconfigure(errors="replace")
    logging.getLogger("psycopg").setLevel(logging.CRITICAL)  # what matters is raised as well


for command in (
    store,
    start,
    status,
    dead_letters,
    positions,
    partitions,
    reconcile,
    archive,
    spark,
    prune,
    demo,
    completion,
):
    main.add_command(command)
