"""The page *story of a key*: ``/story?q=…`` tells what the store holds of what a text names.

Other pages link here with any key, stream, message id, correlation or global position as ``q``;
``as`` says what it is, where the text alone could be taken for something else.
"""

from collections import Counter
from datetime import datetime, timedelta
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cli.console.console import Entry, console_of
from cli.console.pages.letters.dead_letters import LETTER
from cli.console.pages.letters.letter_search import address_of
from consumers.story.content.difference import pretty
from consumers.story.content.entries import Entry as StoryEntry
from consumers.story.content.entries import Kind, Meaning, Story
from consumers.story.story import tell
from reservation.errors import StatementCanceledError

ENTRY = Entry("story", "Story of a key", "/story", "s")

# Characters of one message's data, or metadata, on the page.
LONGEST = 8_000

_TOO_LONG = (
    "The search took too long, and was ended. Give the name of a stream, or the id of a message, "
    "which are found at once."
)

# How each kind is marked; the others have no colour.
TONES = {
    Kind.CONFLICT: "bad",
    Kind.REJECTION: "warn",
    Kind.LETTER: "bad",
    Kind.EVENT: "good",
    Kind.NO_EVENT: "good",
    Kind.RESERVATION: "main",
    Kind.COMMAND: "main",
    Kind.CORRECTION: "warn",
}


def show(request: Request) -> Response:
    """Show the page."""
    console = console_of(request)
    query = request.query_params
    text, meaning = query.get("q", "").strip(), _meaning(query.get("as", ""))
    story, status, problem = Story(text), 200, None
    if text:
        try:
            with console.reading() as connection:
                story = tell(
                    connection,
                    text,
                    meaning=meaning,
                    after=_position(query.get("after", "")),
                    components=list(console.components.values()),
                )
        except StatementCanceledError:
            status, problem = 503, _TOO_LONG
    return console.page(
        request,
        "story.html",
        status=status,
        page=ENTRY,
        story=story,
        problem=problem,
        counts=_counts(story),
        tones=TONES,
        address=address,
        meanings=Meaning,
        letter_path=LETTER,
        parameters_of=address_of,
        next_page=None if story.next_after is None else _next(story, meaning),
        since=_since(story),
        pretty=lambda text: pretty(text, LONGEST),
    )


def address(text: str, meaning: Meaning | None = None) -> str:
    """Return the address of a story.

    Args:
        text: what names it.
        meaning: what that is to be taken for; None to find out.
    """
    query = {"q": text} if meaning is None else {"q": text, "as": meaning.value}
    return f"{ENTRY.path}?{urlencode(query, errors='replace')}"


def _next(story: Story, meaning: Meaning | None) -> str:
    return f"{address(story.text, meaning)}&after={story.next_after}"


def _meaning(text: str) -> Meaning | None:
    return next((one for one in Meaning if one.value == text), None)


def _position(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def _counts(story: Story) -> list[tuple[str, int]]:
    """Return how many entries there are of each kind, in their order."""
    return list(Counter(entry.kind.value for entry in story.entries).items())


def _since(story: Story) -> dict[int, str]:
    """Return for each entry, by its place, how long after the first one it was."""
    first = min((entry.time for entry in story.entries), default=None)
    return {
        n: "" if first is None else _span(entry, first) for n, entry in enumerate(story.entries)
    }


def _span(entry: StoryEntry, first: datetime) -> str:
    after = entry.time - first
    if after <= timedelta(0):
        return "start"
    seconds = after.total_seconds()
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"+{seconds / size:.1f} {unit}"
    return f"+{seconds:.2f} s" if seconds >= 1 else f"+{seconds * 1000:.0f} ms"


ROUTES = [Route(ENTRY.path, show)]
