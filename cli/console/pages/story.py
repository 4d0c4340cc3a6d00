"""The page *story of a key*: ``/story?q=…`` tells what the store holds of what a text names.

Other pages link here with any key, stream, message id or global position as ``q``.
"""

from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cli.console.console import console_of
from cli.console.pages.letter_search import address_of
from cli.console.pages.letters import LETTER
from consumers.story.story import EntryKind, Story, read_story
from reservation.errors import StatementCanceledError

PATH = "/story"

# Characters of one message's data, or metadata, on the page.
LONGEST = 8_000

_TOO_LONG = (
    "The search took too long, and was ended. Give the name of a stream, or the id of a message, "
    "which are found at once."
)

# How each kind is marked; the others have no colour.
TONES = {
    EntryKind.REISSUE: "warn",
    EntryKind.REJECTION: "warn",
    EntryKind.LETTER: "bad",
    EntryKind.EVENT: "good",
    EntryKind.NO_EVENT: "good",
    EntryKind.RESERVATION: "main",
    EntryKind.COMMAND: "main",
}


def show(request: Request) -> Response:
    """Show the page."""
    console = console_of(request)
    text = request.query_params.get("q", "").strip()
    story, status, problem = Story(text), 200, None
    if text:
        try:
            with console.reading() as connection:
                story = read_story(connection, text)
        except StatementCanceledError:
            status, problem = 503, _TOO_LONG
    return console.page(
        request,
        "story.html",
        status=status,
        story=story,
        problem=problem,
        tones=TONES,
        address=lambda q: f"{PATH}?{urlencode({'q': q}, errors='replace')}",
        letter_path=LETTER,
        parameters_of=address_of,
        longest=LONGEST,
    )


ROUTES = [Route(PATH, show)]
