"""``reservation story``: its options, and its help."""

import click

from cli.common.errors import debug_option
from cli.common.lazy import runs
from cli.common.options import database_option, json_option


@click.command()
@click.argument("text")
@click.option("--data", "with_data", is_flag=True, help="Also show the data of messages.")
@database_option
@json_option
@debug_option
@runs("cli.story.output:print_story")
def story() -> None:
    """Tell what became of one command: what the store holds of it, in order.

    TEXT is an idempotence key, the name of a stream, the id of a message or a global position.

    The story has the command and what it follows from, its reissues, its reservation, the events
    and further messages that follow from it, what is scheduled, and dead letters. It is read under
    one snapshot, and nothing is written. An auditor's rights are enough.

    Data may be confidential, so it is shown only with --data. The exit status is 1 if the store has
    nothing of this name.

    \b
    Examples:
      reservation story withdrawal-17
      reservation story 123+withdrawal-17
      reservation story account-123
      reservation story 0190163d-8694-739b-aea5-966c26f8ad91 --data --json
    """
