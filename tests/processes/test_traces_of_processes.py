"""A trace over real processes, received as OTLP."""

import os
from pathlib import Path

from tests.apps.selling import COMMANDS, COPIES, Sell
from tests.support.started import Started
from tests.support.tracing import Receiver, recording

ROOT = Path(__file__).parents[2]


def started(database_url, receiver, *arguments, **variables):
    """Start consumers of the till, with their traces."""
    return Started(
        database_url,
        *arguments,
        app="tests.apps.traced_app:till",
        cwd=ROOT,
        env={**os.environ, **receiver.environment, "TILL_TRACES": "1", **variables},
    )


def named(spans, name):
    """Return the spans of this name."""
    return [span for span in spans if span.name == name]


def test_one_trace_leads_over_three_processes_and_a_kill(store, database_url, tmp_path):
    """What is not exported when the processes stop is exported then."""
    with (
        Receiver() as receiver,
        started(
            database_url, receiver, "--only", "commands", OTEL_BSP_SCHEDULE_DELAY="600000"
        ) as commands,
        started(
            database_url,
            receiver,
            "--only",
            "reserved",
            TILL_DIES=str(tmp_path / "died"),
            OTEL_BSP_SCHEDULE_DELAY="600000",
        ) as consumers,
        recording() as here,
    ):
        with here.tracer.start_as_current_span("request"):
            store.write(Sell("1", "a"), f"{COMMANDS}-1")
        consumers.wait_for("process_died")
        sold = consumers.wait_for("sold")
        consumers.wait_for("batch_committed", category=COPIES)
        assert receiver.requests == 0
        assert (commands.stop(), consumers.stop()) == (0, 0)
        spans = receiver.wait(lambda spans: len(spans) >= 2)
    sent, request = here.all()
    (reserved,), (handled,) = (
        named(spans, f"reserve {COMMANDS}"),
        named(spans, f"process {COPIES}"),
    )
    assert {span.trace for span in (sent, reserved, handled)} == {request.trace}
    assert {span.parent for span in (reserved, handled)} == {sent.id}
    assert len({reserved.process, handled.process, str(os.getpid())}) == 3
    assert handled.attributes["reservation.outcome"] == "handled"
    assert (sold["trace_id"], sold["span_id"]) == handled.context
    (event,) = store.read_category("till")
    carried = event.metadata.properties["traceparent"]
    assert carried.startswith(f"00-{handled.trace}-{handled.id}-")
