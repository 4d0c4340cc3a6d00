"""The shop of the examples, with all its processes."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import httpx

from tests.support.ports import free_port
from tests.support.started import EXAMPLES, PATIENCE, Started, run_cli

COMPONENTS = ("shop:orders", "shop:payments")


class Process:
    """A process of the shop that is killed and started again."""

    def __init__(self, arguments, env, address):
        self._arguments = [sys.executable, "-P", *arguments]
        self._env = {**os.environ, "PYTHONPATH": str(EXAMPLES), **env}
        self._address = address
        self._process = None

    def __enter__(self):
        self._process = subprocess.Popen(self._arguments, env=self._env)
        deadline = time.monotonic() + PATIENCE
        while not self.answers():
            assert self._process.poll() is None
            assert time.monotonic() < deadline
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait(PATIENCE)

    def again(self):
        """Kill it, and start it again."""
        self.__exit__()
        self.__enter__()

    def answers(self):
        """Return whether it answers requests."""
        try:
            httpx.get(self._address, timeout=1)
        except httpx.TransportError:
            threading.Event().wait(0.02)  # nothing tells when it listens
            return False
        return True


class Shop:
    """All processes of the shop."""

    def __init__(self, database_url, folder, *, pay_within="1h", fail=0.2):
        provider, web = free_port(), free_port()
        self.provider_address = f"http://127.0.0.1:{provider}"
        self.address = f"http://127.0.0.1:{web}"
        self.env = {
            "RESERVATION_DATABASE_URL": database_url,
            "SHOP_PROVIDER": self.provider_address,
            "SHOP_PAY_WITHIN": pay_within,
        }
        options = ["--port", str(provider), "--file", str(folder / "provider.db")]
        options += ["--fail", str(fail), "--delay", "0.02"]
        self.provider = Process(
            ["-m", "shop.provider", *options], self.env, f"{self.provider_address}/ledger"
        )
        self.web = Process(
            ["-m", "uvicorn", "shop.web:app", "--port", str(web), "--log-level", "error"],
            self.env,
            self.address,
        )
        self._database_url = database_url
        self.consumers = {}

    def __enter__(self):
        self.provider.__enter__()
        self.web.__enter__()
        for app in COMPONENTS:
            self.start(app)
        return self

    def __exit__(self, *_):
        for started in self.consumers.values():
            started.__exit__()
        self.web.__exit__()
        self.provider.__exit__()

    def start(self, app):
        """Start the consumers of a component."""
        self.consumers[app] = Started(self._database_url, app=app, env={**os.environ, **self.env})

    def kill(self, app):
        """Kill the consumers of a component with all their processes, and start them again."""
        self.consumers[app].stop_group(signal.SIGKILL)
        self.consumers[app].__exit__()
        self.start(app)

    def order(self, customer, item, key):
        """Order, as often as it takes to get an answer, and then once more."""
        answers = []
        deadline = time.monotonic() + PATIENCE
        while len(answers) < 2:
            assert time.monotonic() < deadline
            try:
                answer = httpx.post(
                    f"{self.address}/orders",
                    json={"item": item},
                    headers={"Authorization": f"Bearer {customer}", "Idempotency-Key": f'"{key}"'},
                    timeout=10,
                )
            except httpx.TransportError:
                continue
            if answer.status_code in (201, 422):
                answers.append((answer.status_code, answer.content))
            else:
                assert answer.status_code in (202, 409, 503), answer.content
                threading.Event().wait(0.1)
        assert answers[0] == answers[1]
        return answers[0][0], json.loads(answers[0][1])

    def show(self, customer, order):
        """Return what a customer is shown of an order."""
        return httpx.get(
            f"{self.address}/orders/{order}", headers={"Authorization": f"Bearer {customer}"}
        )

    def until(self, customer, order, states):
        """Wait until an order has one of some states, and return what is shown then."""
        deadline = time.monotonic() + PATIENCE
        while (shown := self.show(customer, order).json())["state"] not in states:
            assert time.monotonic() < deadline, shown
            threading.Event().wait(0.05)
        return shown

    def ledger(self):
        """Return what took effect at the provider."""
        return httpx.get(f"{self.provider_address}/ledger").json()

    def reconciled(self):
        """Stop the consumers, and return the reports of both components."""
        for started in self.consumers.values():
            assert started.stop() == 0
        reports = []
        for app in COMPONENTS:
            done = run_cli("reconcile", app, "--json", env=self.env)
            assert done.returncode == 0, done.stdout + done.stderr
            reports.append(json.loads(done.stdout))
        return reports


def test_an_order_is_paid_refused_or_declined(database_url, store, tmp_path):
    """A customer sees what becomes of an order, and of nobody else's."""
    del store
    with Shop(database_url, tmp_path) as shop:
        status, placed = shop.order("alice", "lamp", "1")
        assert (status, placed["cents"]) == (201, 4900)
        assert shop.order("alice", "lamp", "1")[1] == placed
        shown = shop.until("alice", placed["order"], {"paid"})
        assert shown["receipt"].startswith("charge-")
        assert shop.show("bob", placed["order"]).status_code == 404
        of_bob = shop.order("bob", "lamp", "1")[1]["order"]
        assert of_bob != placed["order"]
        shop.until("bob", of_bob, {"paid"})
        assert shop.order("alice", "yacht", "2") == (422, {"reason": "there is no yacht"})
        _, declined = shop.order("broke", "book", "1")
        shown = shop.until("broke", declined["order"], {"cancelled"})
        assert shown["reason"] == "card declined"
        assert Counter(entry["path"] for entry in shop.ledger()) == {"/charges": 2}
