"""``reservation dead-letters``: show, retry and discard messages that were not handled."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from cli.common.confirming import confirm, yes_option
from cli.common.errors import CommandError, CommandGroup, debug_option
from cli.common.options import database_option, json_option
from cli.common.tables import console
from cli.consumers import letter_output
from cli.consumers.letter_choice import ChosenLetters, LetterChoice, choice_options, letters_of
from consumers.dead_letters import administration, bulk, history
from consumers.dead_letters.history import LetterRequest
from consumers.dead_letters.letter import STATES, Selection, StateChange
from consumers.dead_letters.retry_with_data import retry_with_data
from consumers.dead_letters.search import Filter
from reservation.messages.message import printable
from reservation.postgres.connection import connect
from reservation.store.schema.install import check_installed

F = TypeVar("F", bound=Callable[..., Any])


@click.group("dead-letters", cls=CommandGroup)
@debug_option
def dead_letters() -> None:
    """Show the messages that consumers could not handle, and retry or discard them.

    \b
    dead       it failed, and is not tried again by itself
    waiting    it failed, or is to be retried, and waits for its next attempt; or it runs
    parked     it waits behind an earlier message of the same entity that is dead or waiting
    handled    it was handled later
    discarded  it was given up

    \b
    Example:
      reservation dead-letters list
    """


def _whose(command: F) -> F:
    command = click.option("--category", help="Only dead letters of this category.")(command)
    return click.option("--consumer", help="Only dead letters of this component.")(command)


@dead_letters.command("list")
@_whose
@click.option(
    "--entity", metavar="STREAM", help="Only dead letters of this entity, such as account-123."
)
@click.option(
    "--state",
    "states",
    type=click.Choice(STATES),
    multiple=True,
    help="Those in this state instead; several times for several states.",
)
@click.option("--all", "every", is_flag=True, help="Those in every state.")
@database_option
@json_option
@debug_option
def list_command(
    consumer: str | None,
    category: str | None,
    entity: str | None,
    states: tuple[str, ...],
    every: bool,
    database_url: str,
    as_json: bool,
) -> None:
    """List dead letters, and what is parked behind them: what needs somebody to decide.

    \b
    Examples:
      reservation dead-letters list
      reservation dead-letters list --state waiting
      reservation dead-letters list --entity account-123 --all
      reservation dead-letters list --json | jq '.deadLetters[].reason'
    """
    with connect(database_url, autocommit=True) as connection:
        check_installed(connection)
        letters = administration.find(
            connection,
            Selection(consumer, category, entity),
            states=states or None,
            needs_person=not (states or every),
        )
    if as_json:
        click.echo(
            json.dumps({"deadLetters": [letter_output.as_json(letter) for letter in letters]})
        )
    elif not letters:
        named = f"There is no message in the state {' or '.join(states)}."
        click.echo(named if states else "There are no dead letters.")
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
    """Show everything about one dead letter: its message, and what was done with it.

    The message's data may be confidential, so it is shown only with --data, and so is data that the
    letter was given. The text and the traceback of the exception are there if the consumer was
    started with --errors full. They may be confidential too.

    \b
    Examples:
      reservation dead-letters show 4711
      reservation dead-letters show 4711 --data --json | jq .message.data
    """
    with connect(database_url, autocommit=True) as connection:
        check_installed(connection)
        (letter,) = administration.find_each(connection, Selection(consumer, category), [position])
        content = administration.content(connection, letter)
        correction = administration.correction(connection, letter)
        raised = administration.raised(connection, letter)
        decisions = history.of_letter(connection, letter)
    if as_json:
        message = None if content is None else letter_output.content_as_json(content, with_data)
        given = correction and letter_output.correction_as_json(correction, with_data)
        click.echo(
            json.dumps(
                {
                    **letter_output.as_json(letter),
                    **letter_output.raised_as_json(raised),
                    "message": message,
                    "correction": given,
                    "decisions": [letter_output.decision_as_json(one) for one in decisions],
                }
            )
        )
    else:
        shown = letter_output.fields(letter, content, correction, raised, decisions, with_data)
        console().print(shown)


_reason = click.option("--reason", metavar="TEXT", help="Why; it is stored.")


_dry_run = click.option(
    "--dry-run", is_flag=True, help="Print the letters that would be changed, and change nothing."
)


@dead_letters.command("retry")
@choice_options
@click.option(
    "--data",
    "file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="Handle the one letter with this data, a JSON object; - for standard input.",
)
@_reason
@_dry_run
@database_option
@json_option
@debug_option
def retry_command(
    choice: LetterChoice,
    file: Path | None,
    reason: str | None,
    dry_run: bool,
    database_url: str,
    as_json: bool,
) -> None:
    """Have dead letters handled again, and then the messages parked behind them.

    Give their positions, or options that select them; of several options, all must match. Run this
    once the fault is fixed. The command does not wait: the consumer handles the messages in the
    order of the log. A message that waits for its next attempt is tried at once. One that fails
    again waits or is dead again, and the messages behind it stay parked. A conflict cannot be
    retried, because another command took its key. Who asked, when and why is stored, and `show`
    prints it.

    With --data, one letter is handled with other data than its message has, under the same key,
    once. The letter keeps the data, and the log keeps the message as it was sent. The data has the
    shape of the stored message, and the same key and entity. Reissues of the message, and commands
    that say what the data says, are duplicates. This needs a reason, and the rights of an operator.

    \b
    Examples:
      reservation dead-letters retry 4711
      reservation dead-letters retry --entity account-123
      reservation dead-letters retry --type Charge --older-than 1h --dry-run
      reservation dead-letters retry 4711 --data corrected.json --reason "the sender confirmed 20"
      reservation dead-letters retry --all --consumer account --reason "the provider is back"
    """
    if file is not None and (len(choice.positions) != 1 or dry_run):
        raise click.UsageError(
            "--data needs exactly one global position, and cannot be given with --dry-run"
        )
    if file is not None and not (reason or "").strip():
        raise click.UsageError("Give --reason; it is stored with the data")
    with connect(database_url, autocommit=True) as connection:
        check_installed(connection)
        if dry_run:
            chosen = letters_of(connection, choice, bulk.to_retry(choice.wanted))
            _print_chosen(chosen, as_json)
            return
        if file is not None:
            data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
            changed = retry_with_data(
                connection, choice.selection, choice.positions[0], data, LetterRequest(reason)
            )
        elif choice.positions:
            changed = administration.retry(
                connection, choice.selection, choice.positions, LetterRequest(reason)
            )
        else:
            changed = bulk.retry_found(connection, choice.wanted, LetterRequest(reason))
    entity = choice.wanted.entity
    if choice.wanted == Filter(entity=entity) and entity is not None and not changed.letters:
        raise CommandError(f"The entity {printable(entity)} has no dead letter")
    _print_changed("waiting", changed, as_json)


@dead_letters.command("discard")
@choice_options
@_reason
@_dry_run
@yes_option
@database_option
@json_option
@debug_option
def discard_command(
    choice: LetterChoice,
    reason: str | None,
    dry_run: bool,
    yes: bool,
    database_url: str,
    as_json: bool,
) -> None:
    """Give up dead letters, and let the messages parked behind them be handled.

    Give their positions, or a reason and options that select them; of several options, all must
    match. The message stays in the store, and so does the letter, as discarded. Who discarded it,
    when and why is stored, and `show` prints it. The command asks for confirmation; without a
    terminal, give --yes.

    \b
    Examples:
      reservation dead-letters discard 4711
      reservation dead-letters discard 4711 4712 --reason "sent by a test" --yes
      reservation dead-letters discard --consumer account --digest 4f2a9c01d35e7b68 --dry-run
      reservation dead-letters discard --type Ping --older-than 30d --reason "of the old app" --yes
    """
    if not (choice.positions or dry_run or (reason or "").strip()):
        raise click.UsageError("Give --reason; it is stored with each letter that is discarded")
    with connect(database_url, autocommit=True) as connection:
        check_installed(connection)
        wanted, extent = bulk.to_discard(choice.wanted), None
        if dry_run or not yes:
            chosen = letters_of(connection, choice, wanted)
            extent = chosen.extent
            if dry_run:
                _print_chosen(chosen, as_json)
                return
            if extent.count:
                confirm(chosen.lines, "They will not be handled. Discard them")
        if choice.positions:
            changed = administration.discard(
                connection, choice.selection, choice.positions, LetterRequest(reason)
            )
        else:
            changed = bulk.discard_found(connection, choice.wanted, LetterRequest(reason), extent)
    _print_changed("discarded", changed, as_json)


def _print_chosen(chosen: ChosenLetters, as_json: bool) -> None:
    """Print what a dry run has found."""
    if as_json:
        letters = [letter_output.as_json(letter) for letter in chosen.letters]
        click.echo(json.dumps({"chosen": chosen.extent.count, "deadLetters": letters}))
        return
    for line in chosen.lines:
        click.echo(line)
    count = chosen.extent.count
    click.echo(f"{count} dead {'letter' if count == 1 else 'letters'} would be changed.")
    click.echo("Nothing is changed.", err=True)


def _print_changed(state: str, changed: StateChange, as_json: bool) -> None:
    if as_json:
        letters = [letter_output.as_json(letter) | {"state": state} for letter in changed.letters]
        click.echo(json.dumps({"changed": letters, "parked": changed.waiting}))
        return
    count = len(changed.letters)
    what = f"{count} dead {'letter' if count == 1 else 'letters'}"
    if not count:
        click.echo("Nothing was changed: nothing is dead, or it will be retried already.")
    elif state == "waiting":
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
