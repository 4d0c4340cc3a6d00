"""Traces over real processes, received as OTLP."""

import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from reservation import MessageStore
from tests.processes import Started
from tests.selling import COMMANDS, COPIES, Sell
from tests.tracing import Receiver, recording

ROOT = Path(__file__).parent.parent
pytestmark = [pytest.mark.slow, pytest.mark.faults]


def started(database_url: str, receiver: Receiver, *arguments: str, **variables: str) -> Started:
    """Start the consumers of the till, each in a process of its own, with their traces."""
    return Started(
        database_url,
        *arguments,
        app="tests.traced_app:till",
        cwd=ROOT,
        env={**os.environ, **receiver.environment, "TILL_TRACES": "1", **variables},
    )


def names(spans: Any) -> list[str]:
    return [span.name for span in spans]


@pytest.mark.check
def test_one_trace_leads_over_three_processes(store: MessageStore, database_url: str) -> None:
    with (
        Receiver() as receiver,
        started(database_url, receiver) as consumers,
        recording() as here,
    ):
        with here.tracer.start_as_current_span("request"):
            store.write(Sell("1", "a"), f"{COMMANDS}-1")
        spans = receiver.wait(lambda spans: len(spans) >= 2)
        sold = consumers.wait_for("sold")
        assert consumers.stop() == 0
    sent, request = here.all()
    reserved, handled = sorted(spans, key=lambda span: span.name, reverse=True)
    assert names([reserved, handled]) == [f"reserve {COMMANDS}", f"process {COPIES}"]
    assert {span.trace for span in (sent, reserved, handled)} == {request.trace}
    assert {span.parent for span in (reserved, handled)} == {sent.id}
    assert len({reserved.process, handled.process, str(os.getpid())}) == 3
    assert (sold["trace_id"], sold["span_id"]) == handled.context
    (event,) = store.read_category("till")
    carried = event.metadata.properties["traceparent"]
    assert carried.startswith(f"00-{handled.trace}-{handled.id}-")


def test_a_process_that_is_killed_leaves_the_trace_whole(
    store: MessageStore, database_url: str, tmp_path: Path
) -> None:
    died = tmp_path / "died"
    with (
        Receiver() as receiver,
        started(database_url, receiver, TILL_DIES=str(died)) as consumers,
        recording() as here,
    ):
        store.write(Sell("1", "a"), f"{COMMANDS}-1")
        consumers.wait_for("consumer_died")
        consumers.wait_for("sold")
        assert consumers.stop() == 0
        spans = receiver.wait(lambda spans: f"process {COPIES}" in names(spans))
    (sent,) = here.all()
    (handled,) = (span for span in spans if span.name == f"process {COPIES}")
    assert (handled.trace, handled.parent) == sent.context
    assert handled.attributes["reservation.outcome"] == "handled"


def test_what_is_left_is_exported_when_the_process_stops(
    store: MessageStore, database_url: str
) -> None:
    with Receiver() as receiver:
        store.write(Sell("1", "a"), f"{COMMANDS}-1")
        late = {"OTEL_BSP_SCHEDULE_DELAY": "600000"}
        with started(database_url, receiver, **late) as consumers:
            consumers.wait_for("sold")
            consumers.wait_for("batch_committed", category=COPIES)
            assert receiver.requests == 0
            assert consumers.stop() == 0
        receiver.wait(lambda spans: len(spans) == 2)


def test_a_receiver_that_does_not_answer_disturbs_nobody(
    store: MessageStore, database_url: str
) -> None:
    with Receiver() as receiver:
        receiver.stall()
        with started(database_url, receiver, "--grace", "60s") as consumers:
            for number in range(3):
                store.write(Sell("1", str(number)), f"{COMMANDS}-1")
                consumers.wait_for("sold")
                consumers.wait_for("batch_committed", category=COPIES)
            while not receiver.requests:
                time.sleep(0.01)
            assert consumers.stop() == 0
        assert "batch_abandoned" not in consumers.log
    assert store.stream_version("till-1") == 2


@pytest.mark.long
def test_the_command_of_opentelemetry_sets_up_each_process(
    store: MessageStore, database_url: str
) -> None:
    instrument = shutil.which("opentelemetry-instrument", path=str(Path(sys.executable).parent))
    if instrument is None:
        pytest.skip("opentelemetry-distro is not installed")
    with Receiver() as receiver, recording() as here:
        store.write(Sell("1", "a"), f"{COMMANDS}-1")
        environment = {
            **os.environ,
            **receiver.environment,
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_LOGS_EXPORTER": "none",
        }
        with Started(
            database_url,
            app="tests.traced_app:till",
            cwd=ROOT,
            env=environment,
            prefix=[instrument],
        ) as consumers:
            spans = receiver.wait(lambda spans: len(spans) >= 2)
            assert consumers.stop() == 0
    (sent,) = here.all()
    assert {(span.trace, span.parent) for span in spans} == {sent.context}
