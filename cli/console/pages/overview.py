"""The page *overview*: each component as a flow from command to effect."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cli.console.console import console_of
from cli.console.reading.flow import read_overview
from reservation.inspection.schedule import series_status


def show(request: Request) -> Response:
    """Show all components."""
    console = console_of(request)
    with console.reading() as connection:
        overview = read_overview(connection, console.components)
    stages = [stage for flow in overview.flows for stage in flow.stages]
    lags = [stage.summary.lag for stage in stages]
    totals = {
        "rate": sum(
            stage.traffic.rate for flow in overview.flows for stage in [flow.commands] if stage
        ),
        "messages": sum(lag.messages for lag in lags),
        "at_least": any(lag.at_least for lag in lags),
        "oldest": max((lag.seconds for lag in lags if lag.seconds), default=None),
        "dead": sum(stage.summary.letters.dead for stage in stages),
        "parked": sum(stage.summary.letters.parked for stage in stages),
        "waiting": sum(stage.summary.letters.waiting for stage in stages),
    }
    series = series_status(overview.summary.series, overview.summary.time)
    return console.page(request, "overview.html", overview=overview, totals=totals, series=series)


ROUTES = [Route("/", show)]
