"""What keeps a consumer from being taken to be stuck: its telemetry is told that it lives."""

from dataclasses import dataclass

from consumers.loop.consuming import Consumers, Part
from consumers.options import Options
from consumers.runtime.observability.logs import Log
from consumers.runtime.observability.telemetry import Telemetry
from consumers.runtime.stopping import Stop
from reservation import Component, ReadContext, ReadModel
from tests.apps.bank import address
from tests.support.read_models import component, prepare


@dataclass(frozen=True)
class Count:
    counter_id: str


class Beats(Telemetry):
    """Counts the signs of life."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def beat(self) -> None:
        self.count += 1


def test_each_message_that_is_handled_is_a_sign_of_life(store, database_url):
    """However long the batch takes."""
    beats, stop, seen = Beats(), Stop(takes_signals=False), []
    component = Component("counter", id="counter_id")

    @component.handle(Count, once=None)
    def count(command, entity, context):
        seen.append(beats.count)
        if len(seen) == 3:
            stop.request()

    store.write([Count("1"), Count("1"), Count("1")], "counter:command-1")
    part = Part(component, "counter:command", Log("counter", "counter:command"), beats)
    running = Consumers([part], database_url, Options(batch_size=100), stop)
    running.start()
    running.join()
    assert seen[0] < seen[1] < seen[2]


def test_answers_to_a_handler_of_a_read_model_are_signs_of_life(store, connection):
    """However many statements one call executes, and however long they take."""
    beats, stop, seen = Beats(), Stop(takes_signals=False), []
    model = ReadModel("counts", version=1)
    model.tables(lambda c: c.execute("CREATE TABLE counts (n int PRIMARY KEY)"))

    @model.handle(Count, category="counter")
    def count(event: Count, context: ReadContext) -> None:
        before = beats.count
        for n in range(500):
            context.connection.execute("INSERT INTO counts VALUES (%s)", [n])
        seen.append(beats.count - before)
        stop.request()

    prepare(connection, model)
    store.write(Count("1"), "counter-1")
    part = Part(component(model), "counter", Log("counts_1", "counter"), beats)
    running = Consumers([part], address(connection), Options(), stop)
    running.start()
    running.join()
    assert seen[0] > 3
