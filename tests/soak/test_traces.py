"""Traces of real processes: a receiver that is silent, and the command of OpenTelemetry."""

import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from tests.apps.selling import COMMANDS, COPIES, Sell
from tests.processes.test_traces_of_processes import ROOT, started
from tests.support.started import Started
from tests.support.tracing import Receiver, recording


def test_a_receiver_that_does_not_answer_disturbs_nobody(store, database_url):
    """Messages are handled, and the consumers stop in time."""
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


def test_the_command_of_opentelemetry_sets_up_each_process(store, database_url):
    """Whoever starts the consumers with it need not set up anything."""
    instrument = shutil.which("opentelemetry-instrument", path=str(Path(sys.executable).parent))
    if instrument is None:
        pytest.skip("opentelemetry-distro is not installed")
    with Receiver() as receiver, recording() as here:
        store.write(Sell("1", "a"), f"{COMMANDS}-1")
        others = {"OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
        with Started(
            database_url,
            app="tests.apps.traced_app:till",
            cwd=ROOT,
            env={**os.environ, **receiver.environment, **others},
            prefix=[instrument],
        ) as consumers:
            spans = receiver.wait(lambda spans: len(spans) >= 2)
            assert consumers.stop() == 0
    (sent,) = here.all()
    assert {(span.trace, span.parent) for span in spans} == {sent.context}
