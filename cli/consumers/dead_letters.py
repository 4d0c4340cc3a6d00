"""``reservation dead-letters``: show, retry, correct and discard messages that were not handled."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from cli.common.errors import CommandError, Group, debug_option
from cli.common.options import app_options, database_option, json_option
from cli.common.tables import console
from cli.consumers import letter_output
from consumers.correcting.correct import correct
from consumers.dead_letters import administration, history
from consumers.dead_letters.history import Request
from consumers.dead_letters.stored_letters import (
    OPEN,
    Selection,
    StateChange,
    StoredLetter,
)
from reservation.app_path import load_component
from reservation.messages.message import printable
from reservation.postgres.connection import connect
from reservation.store.schema.install import check_installed

F = TypeVar("F", bound=Callable[..., Any])


@click.group("dead-letters", cls=Group)
@debug_option
def dead_letters() -> None:
    """Show the messages that consumers could not handle, and retry, correct or discard them.

    \b
    dead       the message failed, or cannot be handled
    waiting    it failed, and waits for its next attempt
    parked     it waits behind a dead message of the same entity
    retry      it will be handled again
    handled    it was handled later
    discarded  it was given up

    \b
    Example:
      reservation dead-letters list
    """


def _whose(command: F) -> F:
    command = click.option("--category", help="Only dead letters of this category.")(command)
    return click.option("--consumer", help="Only dead letters of this component.")(command)


_positions = click.argument(
    "positions", metavar="GLOBAL_POSITION...", nargs=-1, required=True, type=click.IntRange(1)
)


@dead_letters.command("list")
@_whose
@click.option(
    "--entity", metavar="STREAM", help="Only dead letters of this entity, such as account-123."
)
@click.option("--all", "closed", is_flag=True, help="Also handled and discarded ones.")
@database_option
@json_option
@debug_option
def list_command(
    consumer: str | None,
    category: str | None,
    entity: str | None,
    closed: bool,
    database_url: str,
    as_json: bool,
) -> None:
    """List dead letters, and what is parked behind them.

    \b
    Examples:
      reservation dead-letters list
      reservation dead-letters list --entity account-123 --all
      reservation dead-letters list --json | jq '.deadLetters[].reason'
    """
    with connect(database_url, autocommit=True) as connection:
        check_installed(connection)
        letters = administration.find(
            connection,
            Selection(consumer, category, entity),
            states=None if closed else OPEN,
        )
    if as_json:
        click.echo(
            json.dumps({"deadLetters": [letter_output.as_json(letter) for letter in letters]})
        )
    elif not letters:
        click.echo("There are no dead letters.")
    else:
        console().print(letter_output.table(letters))
        raised = letter_output.raised_lines(letters)
        for line in raised:
            click.echo(line)
        if raised:
            click.echo("For more: reservation dead-letters show POSITION")


@dead_letters.command("show")
@click.argument("position", metavar="GLOBAL_POSITION", type=click.IntRange(1))
@_whose
@click.option("--data", "with_data", is_flag=True, help="Also show the message's data.")
@database_option
@json_option
@debug_option
def show_command(
    position: int,
    consumer: str | None,
    category: str | None,
    with_data: bool,
    database_url: str,
    as_json: bool,
) -> None:
    """Show everything about one dead letter: its message, corrections and what was done with it.

    The message's data may be confidential, so it and the corrected data are shown only with --data.
    The text and the traceback of the exception are there if the consumer was started with
    --errors full. They may be confidential too.

    \b
    Examples:
      reservation dead-letters show 4711
      reservation dead-letters show 4711 --data --json | jq .message.data
    """
    with connect(database_url, autocommit=True) as connection:
        check_installed(connection)
        (letter,) = administration.find_each(connection, Selection(consumer, category), [position])
        content = administration.content(connection, letter)
        corrections = administration.corrections(connection, letter)
        raised = administration.raised(connection, letter)
        decisions = history.of_letter(connection, letter)
    if as_json:
        message = None if content is None else letter_output.content_as_json(content, with_data)
        corrected = [letter_output.correction_as_json(one, with_data) for one in corrections]
        click.echo(
            json.dumps(
                {
                    **letter_output.as_json(letter),
                    **letter_output.raised_as_json(raised),
                    "message": message,
                    "corrections": corrected,
                    "decisions": [letter_output.decision_as_json(one) for one in decisions],
                }
            )
        )
    else:
        shown = letter_output.fields(letter, content, corrections, raised, decisions, with_data)
        console().print(shown)


_reason = click.option("--reason", metavar="TEXT", help="Why; it is stored.")


@dead_letters.command("retry")
@click.argument("positions", metavar="[GLOBAL_POSITION]...", nargs=-1, type=click.IntRange(1))
@click.option("--entity", metavar="STREAM", help="Retry all that are dead of this entity.")
@click.option("--all", "every", is_flag=True, help="Retry all that are dead.")
@_whose
@_reason
@database_option
@json_option
@debug_option
def retry_command(
    positions: tuple[int, ...],
    entity: str | None,
    every: bool,
    consumer: str | None,
    category: str | None,
    reason: str | None,
    database_url: str,
    as_json: bool,
) -> None:
    """Mark dead letters to be handled again, and then the messages parked behind them.

    Run this once the fault is fixed. The command does not wait: the consumer handles the messages
    in the order of the log. One that fails again is dead again, and the messages behind it stay
    parked. A conflict cannot be retried, because another command took its key. Who asked, when and
    why is kept, and `show` prints it.

    \b
    Examples:
      reservation dead-letters retry 4711
      reservation dead-letters retry --entity account-123
      reservation dead-letters retry --all --consumer account --reason "the provider is back"
    """
    if sum([bool(positions), entity is not None, every]) != 1:
        raise click.UsageError("Give global positions, --entity or --all")
    with connect(database_url, autocommit=True) as connection:
        check_installed(connection)
        changed = administration.retry(
            connection, Selection(consumer, category, entity), positions, Request(reason)
        )
    if entity is not None and not changed.letters:
        raise CommandError(f"The entity {printable(entity)} has no dead letter")
    _print_changed("retry", changed, as_json)


@dead_letters.command("correct")
@app_options
@click.argument("position", metavar="GLOBAL_POSITION", type=click.IntRange(1))
@click.option(
    "--data",
    "file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True),
    metavar="FILE",
    required=True,
    help="The corrected data of the message, a JSON object; - for standard input.",
)
@click.option("--reason", metavar="TEXT", required=True, help="Why it is corrected; it is stored.")
@click.option("--category", help="Only a dead letter of this category.")
@database_option
@json_option
@debug_option
def correct_command(
    app: str,
    app_dir: str,
    position: int,
    file: Path,
    reason: str,
    category: str | None,
    database_url: str,
    as_json: bool,
) -> None:
    """Have a dead message of the component APP handled with other data, under its key, once.

    The data has the shape of the stored message: APP's upcasters are applied to it. Its key and its
    entity must be those of the message.
    The correction is stored as a message in the category <component>:correction, with both
    contents, the reason, the time and the database user; the message itself stays as it is. The
    letter is then retried as by `retry`, and the messages parked behind it follow. A message that
    is corrected again before it was handled is handled with the last correction. Reissues of the
    message and of the correction are duplicates.

    Needs the rights of an operator: `reservation store grants operator ROLE`.

    \b
    Examples:
      reservation dead-letters show 4711 --data --json | jq .message.data > corrected.json
      reservation dead-letters correct bank:account 4711 --data corrected.json --reason "ticket 12"
      jq '.amount = 20' data.json |
        reservation dead-letters correct bank:account 4711 --data - --reason "ticket 13"
    """
    component = load_component(app, app_dir)
    data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    with connect(database_url, autocommit=True) as connection:
        check_installed(connection)
        done = correct(connection, component, category, position, data, reason)
    if as_json:
        click.echo(json.dumps(letter_output.corrected_as_json(done)))
    else:
        click.echo("\n".join(letter_output.corrected_sentences(done)))


@dead_letters.command("discard")
@_positions
@_whose
@_reason
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@database_option
@json_option
@debug_option
def discard_command(
    positions: tuple[int, ...],
    consumer: str | None,
    category: str | None,
    reason: str | None,
    yes: bool,
    database_url: str,
    as_json: bool,
) -> None:
    """Give up dead letters, and let the messages parked behind them be handled.

    The message stays in the store, and so does the letter, as discarded. Who discarded it, when and
    why is kept, and `show` prints it. The command asks for confirmation; without a terminal, give
    --yes.

    \b
    Examples:
      reservation dead-letters discard 4711
      reservation dead-letters discard 4711 4712 --reason "sent by a test" --yes
    """
    selection = Selection(consumer, category)
    with connect(database_url, autocommit=True) as connection:
        check_installed(connection)
        if not yes:
            _confirm(administration.find_each(connection, selection, positions))
        changed = administration.discard(connection, selection, positions, Request(reason))
    _print_changed("discarded", changed, as_json)


def _confirm(letters: Sequence[StoredLetter]) -> None:
    for letter in letters:
        click.echo(str(letter), err=True)
    if not sys.stdin.isatty():
        raise CommandError("There is no terminal to ask on; give --yes to confirm")
    click.confirm("They will not be handled. Discard them?", abort=True, err=True)


def _print_changed(state: str, changed: StateChange, as_json: bool) -> None:
    if as_json:
        letters = [letter_output.as_json(letter) | {"state": state} for letter in changed.letters]
        click.echo(json.dumps({"changed": letters, "parked": changed.waiting}))
        return
    count = len(changed.letters)
    what = f"{count} dead {'letter' if count == 1 else 'letters'}"
    if not count:
        click.echo("Nothing was changed: nothing is dead, or it will be retried already.")
    elif state == "retry":
        behind = f", and {changed.waiting} parked behind" if changed.waiting else ""
        click.echo(
            f"To be retried: {what}{behind}. {letter_output.WHEN_RETRIED.format(what='them')}"
        )
    else:
        behind = (
            letter_output.WHEN_RETRIED.format(what=f"the {changed.waiting} parked behind")
            if changed.waiting
            else ""
        )
        click.echo(f"Discarded: {what}. {behind}".rstrip())
