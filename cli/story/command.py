"""``reservation story``: its options, and its help."""

import click

from cli.common.errors import debug_option
from cli.common.lazy import runs
from cli.common.options import app_dir_option, database_option, json_option

# As `consumers.story.content.entries.Meaning` has them, which is not imported to show this help.
_MEANINGS = ("message", "stream", "key", "correlation", "position", "request")


@click.command()
@click.argument("text")
@click.option(
    "--app",
    "apps",
    metavar="APP",
    multiple=True,
    help="A component whose declaration says how commands are reserved and compared, such as "
    "bank:account. Without it that is taken from what is stored. Repeat it for several.",
)
@app_dir_option
@click.option(
    "--as",
    "meaning",
    type=click.Choice(_MEANINGS),
    help="What TEXT is, if it can be taken for something else.",
)
@click.option(
    "--after",
    type=click.IntRange(0),
    metavar="POSITION",
    help="Go on where a story ended that said so.",
)
@click.option(
    "--data", "with_data", is_flag=True, help="Also show the data of messages, and how it differs."
)
@database_option
@json_option
@debug_option
@runs("cli.story.telling:tell_story")
def story() -> None:
    """Tell what became of one command: all that the store holds of it, in order.

    TEXT is an idempotence key, the name of a stream, the id of a message, a correlation stream or a
    global position. The output says what it was taken for, and what else it may mean.

    The story has the command, its reissues and conflicts, its reservation, the events and further
    messages that follow from it, what is scheduled, dead letters with their corrections, and trace
    ids. It is read under one snapshot, and nothing is written. An auditor's rights are enough.

    Data may be confidential, so it is shown only with --data. The exit status is 1 if the store has
    nothing of this name.

    \b
    Examples:
      reservation story withdrawal-17
      reservation story 123+withdrawal-17 --app bank:account
      reservation story account-123 --as correlation
      reservation story 0190163d-8694-739b-aea5-966c26f8ad91 --data --json
    """
