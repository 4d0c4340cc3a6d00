"""The hotel of the examples, whose processes are killed while its read model changes."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from hotel.tables import ROOMS
from tests.processes.test_shop import Process
from tests.support import chance
from tests.support.ports import free_port
from tests.support.started import EXAMPLES, PATIENCE, Started, run_cli

SERVICE = ("hotel:bookings", "hotel:payments")
BOOKINGS = 24
FIRST, DAYS = "2026-12-01", 20

# What the hotel's own tables and the log say about each night.
TAKEN = """
SELECT b.data->>'room', (b.data->>'first')::date + day, count(*)::int
FROM message_store.messages b
CROSS JOIN LATERAL generate_series(0, (b.data->>'nights')::int - 1) AS day
WHERE b.type = 'Booked' AND message_store.category(b.stream_name) = 'booking'
  AND NOT EXISTS (
    SELECT FROM message_store.messages c
    WHERE c.stream_name = b.stream_name AND c.type = 'Cancelled')
GROUP BY 1, 2
"""


# How many bookings are neither confirmed nor cancelled, and how many are cancelled or paid for.
SETTLED = """
SELECT count(*) FILTER (WHERE NOT types && '{Confirmed,Cancelled}'),
       count(*) FILTER (WHERE 'Cancelled' = ANY (types)),
       (SELECT count(*) FROM receipts)
FROM (
  SELECT array_agg(type::text) AS types FROM message_store.messages
  WHERE message_store.category(stream_name) = 'booking' GROUP BY stream_name
) AS b
WHERE 'Booked' = ANY (types)
"""


class Hotel:
    """All processes of the hotel, with the releases of the read model beside each other."""

    def __init__(self, database_url):
        port = free_port()
        self.address = f"http://127.0.0.1:{port}"
        self.env = {**os.environ, "RESERVATION_DATABASE_URL": database_url}
        self.web = Process(
            ["-m", "uvicorn", "hotel.web:app", "--port", str(port), "--log-level", "error"],
            {"RESERVATION_DATABASE_URL": database_url},
            self.address,
        )
        self._database_url = database_url
        self.started = {}

    def __enter__(self):
        subprocess.run(
            [sys.executable, "-P", "-m", "hotel.tables", FIRST, str(DAYS)],
            env={**self.env, "PYTHONPATH": str(EXAMPLES)},
            check=True,
        )
        self.web.__enter__()
        self.start("service", *SERVICE)
        self.start("occupancy 1", "hotel:occupancy")
        return self

    def __exit__(self, *_):
        for started in self.started.values():
            started.__exit__()
        self.web.__exit__()

    def start(self, name, *apps, version="1"):
        """Start consumers in a process of their own."""
        first, *others = apps
        env = {**self.env, "HOTEL_OCCUPANCY": version}
        self.started[name] = Started(self._database_url, *others, app=first, env=env)

    def kill(self, name, *apps, version="1"):
        """Kill consumers with all their processes, and start them again."""
        self.started[name].stop_group(signal.SIGKILL)
        self.started[name].__exit__()
        self.start(name, *apps, version=version)

    def book(self, guest, key, wish):
        """Book; return the status and the answer."""
        return self.post("bookings", guest, key, wish, 201)

    def cancel(self, booking):
        """Cancel a booking; return the position up to which that is to be seen."""
        _, answer = self.post(f"bookings/{booking}/cancellation", "guest", booking, {}, 200)
        return answer["position"]

    def post(self, path, guest, key, content, expected):
        """Ask as often as it takes to get an answer, and then once more, which changes nothing."""
        answers, answer = [], None
        deadline = time.monotonic() + 3 * PATIENCE
        while len(answers) < 2:
            assert time.monotonic() < deadline, answer and (answer.status_code, answer.text)
            try:
                answer = httpx.post(
                    f"{self.address}/{path}",
                    json=content,
                    headers={"Authorization": f"Bearer {guest}", "Idempotency-Key": f'"{key}"'},
                    timeout=15,
                )
            except httpx.TransportError:
                continue
            if answer.status_code == expected or "reason" in answer.json():
                answers.append((answer.status_code, answer.json()))
            else:
                assert answer.status_code in (202, 409, 503), answer.content
                threading.Event().wait(0.1)
        assert answers[0] == answers[1]
        return answers[0]

    def settle(self, connection, booked, cancelled):
        """Wait until both versions have counted so many bookings and cancellations."""
        deadline = time.monotonic() + 3 * PATIENCE
        while True:
            settled = connection.execute(SETTLED).fetchone()
            versions = self.cli("models", "list", "occupancy")["versions"]
            lags = [one["lagMessages"] for one in versions]
            if settled == (0, cancelled, booked) and lags == [0, 0]:
                return
            assert time.monotonic() < deadline, (settled, versions)

    def cli(self, *words, status=0, version="1"):
        """Run a command on what is declared with a version; return what it printed as JSON."""
        done = run_cli(*words, "--json", env={**self.env, "HOTEL_OCCUPANCY": version})
        assert done.returncode == status, done.stdout + done.stderr
        return json.loads(done.stdout)


@pytest.mark.timeout(600)
def test_a_hotel_books_each_room_once(database_url, connection, store):
    """Whatever is killed, tables, log and both versions of the read model say the same."""
    del store
    drawn = random.Random(chance.FIRST)
    with Hotel(database_url) as hotel:
        with ThreadPoolExecutor(6) as guests:
            asked = [
                guests.submit(
                    hotel.book,
                    f"guest{n % 7}",
                    f"key-{n}",
                    {
                        "room": drawn.choice(["single", "double", "suite"]),
                        "first": f"2026-12-{drawn.randint(1, 15):02}",
                        "nights": drawn.randint(1, 4),
                    },
                )
                for n in range(BOOKINGS)
            ]
            for n in range(4):
                asked[n * BOOKINGS // 4].result()
                match n % 3:
                    case 0:
                        hotel.kill("service", *SERVICE)
                    case 1:
                        hotel.web.again()
                    case 2:
                        hotel.kill("occupancy 1", "hotel:occupancy")
                if n == 3:
                    hotel.start("occupancy 2", "hotel:occupancy", version="2")
            answers = [one.result() for one in asked]
        booked = [answer for status, answer in answers if status == 201]
        assert 0 < len(booked) < BOOKINGS
        hotel.kill("occupancy 2", "hotel:occupancy", version="2")
        last = max(hotel.cancel(one["booking"]) for one in booked[::4])
        hotel.settle(connection, len(booked), len(booked[::4]))
        switched = hotel.cli("models", "switch", "occupancy", "2")
        assert switched == {"model": "occupancy", "version": 2, "switched": True}
        taken = {tuple(row[:2]): row[2] for row in connection.execute(TAKEN)}
        for night in {night for _, night in taken}:
            shown = httpx.get(f"{hotel.address}/occupancy/{night}?after={last}").json()
            assert {room: n for room, n in shown.items() if n} == {
                room: n for (room, at), n in taken.items() if at == night
            }
        free = connection.execute("SELECT room, night, free FROM nights").fetchall()
        assert {
            (room, night): ROOMS[room] - left for room, night, left in free if left < ROOMS[room]
        } == taken
        ((receipts,),) = connection.execute("SELECT count(*) FROM receipts").fetchall()
        assert receipts == len(booked)
        for version in ("1", "2"):
            verified = hotel.cli("models", "verify", "hotel:occupancy", version=version)
            assert verified["proved"]
        for app in SERVICE:
            report = hotel.cli("reconcile", app)
            assert report["samples"] == []
