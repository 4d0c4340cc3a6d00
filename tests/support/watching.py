"""Requests to a running ``reservation start`` for its metrics and its health."""

import time
import urllib.error
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from tests.support.started import PATIENCE, Started


def until(check):
    """Ask repeatedly until the answer is true, and return it."""
    deadline = time.monotonic() + PATIENCE
    while not (answer := check()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return answer


class Watched(Started):
    """A ``reservation start`` whose metrics and health can be requested."""

    def __init__(self, database_url, *arguments, **app):
        super().__init__(database_url, "--metrics-port", "0", *arguments, **app)
        self.port = self.wait_for("metrics_served", host="127.0.0.1")["port"]

    def ask(self, path, **headers):
        """Return the status and the text of an answer."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def ready(self):
        """Wait until every consumer is at work."""
        until(lambda: self.ask("/readyz") == (200, "ok\n"))

    def figures(self):
        """Return every sample by its name and its labels, the consumer and the category first."""
        status, text = self.ask("/metrics")
        assert status == 200
        return {
            (
                sample.name,
                sample.labels.pop("consumer"),
                sample.labels.pop("category"),
                *sample.labels.values(),
            ): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def figure(self, *name):
        """Return one sample; 0 if it is not there."""
        return self.figures().get(name, 0)
