"""The page *consumers*: partitions, who holds them, and what waits for its next attempt."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cli.console.console import console_of
from cli.console.reading.consumers import MOST_WAITING, read_consumers
from consumers.group.inspection.waits import KINDS


def show(request: Request) -> Response:
    """Show all consumers."""
    console = console_of(request)
    with console.reading() as connection:
        seen = read_consumers(connection, console.components.values())
    return console.page(request, "consumers.html", seen=seen, most=MOST_WAITING, kinds=KINDS)


ROUTES = [Route("/consumers", show)]
