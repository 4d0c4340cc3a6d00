"""Errors of the command line: one line, and an exit status.

0 success; 1 a message, a consumer or an invariant is not in order; 2 the command could not run; 130
it was interrupted from the keyboard.
"""

import signal
import sys
import traceback
from typing import Any

import click

from cli.common.interrupts import INTERRUPTED
from reservation.errors import ReservationError

NOT_IN_ORDER = 1
COULD_NOT_RUN = 2

_DEBUG = "reservation.debug"


class CommandError(click.ClickException):
    """The command could not run."""

    exit_code = COULD_NOT_RUN


class NotInOrder(click.ClickException):
    """The command met something that is not in order."""

    exit_code = NOT_IN_ORDER


class CommandGroup(click.Group):
    """A group whose commands report every error in one line, or with ``--debug`` in full."""

    def invoke(self, context: click.Context) -> Any:  # Any: click's own signature
        """Run the command that was asked for."""
        try:
            return super().invoke(context)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise  # click handles these; the last means that the reader of the output is gone
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None
        except Exception as error:
            if context.meta.get(_DEBUG):
                traceback.print_exception(error)
            if isinstance(error, ReservationError):
                message = str(error)
            else:
                message = (
                    f"Unexpected {type(error).__name__}: {error} (run again with --debug to see "
                    f"where)"
                )
            about_data = isinstance(error, ReservationError) and error.is_about_data
            kind = NotInOrder if about_data else CommandError
            raise kind(" ".join(message.split())) from error


def _set_debug(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        context.meta[_DEBUG] = True


def is_debug() -> bool:
    """Return whether the command that runs was given ``--debug``."""
    return bool(click.get_current_context().meta.get(_DEBUG))


# Every command has it, so that it may be given before or after the command's name.
debug_option = click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    callback=_set_debug,
    help="Show the traceback of an error.",
)


def exit_on_sigterm() -> None:
    """Let SIGTERM raise SystemExit, so that everything opened is closed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
