"""Traces: which span has which parent and links, and what the messages carry."""

import asyncio
import uuid
from typing import Any

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

import consumers
from reservation import AsyncMessageStore, Component, MessageStore, Metadata, Reject, Write
from reservation.errors import MessageIdConflictError
from reservation.strategies import Processed, StateBased
from tests.apps.http_app import PATIENCE, key_headers, serving, starlette_app
from tests.apps.http_app import account as http_account
from tests.apps.selling import COMMANDS, COPIES, Print, Printed, Sell, Sold, Till, sell, till
from tests.support.commands import invoke_cli
from tests.support.consuming import logged
from tests.support.tracing import provided, recording


class Broken(Exception):
    pass


def traceparent(message: Any) -> tuple[str, str]:
    """Return the ids of the trace and of the span that a stored message carries."""
    _, trace_id, span_id, _ = message.metadata.properties["traceparent"].split("-")
    return trace_id, span_id


def contexts(store: MessageStore, category: str) -> list[tuple[str, str]]:
    return [traceparent(message) for message in store.read_category(category)]


# Sending


def test_a_message_carries_the_context_of_the_span_in_which_it_was_sent(
    store: MessageStore,
) -> None:
    """Whoever handles it continues the trace of its sender."""
    with recording() as spans, spans.tracer.start_as_current_span("request"):
        store.write(Sell("1", "a"), f"{COMMANDS}-1")
    sent, request = spans.all()
    assert (sent.name, sent.kind, sent.context) == (
        f"send {COMMANDS}",
        "PRODUCER",
        contexts(store, COMMANDS)[0],
    )
    assert (sent.trace, sent.parent) == request.context
    (message,) = store.read_category(COMMANDS)
    assert sent.attributes == {
        "messaging.system": "message_db",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": COMMANDS,
        "messaging.message.id": message.id,
        "reservation.message.type": "Sell",
    }


def test_a_batch_is_sent_in_one_span(store: MessageStore) -> None:
    """Its messages all carry that span."""
    with recording() as spans:
        store.write_batch([Write(Sell("1", "a"), f"{COMMANDS}-1"), Write(Sold("1", "a"), "till-1")])
    (sent,) = spans.all()
    assert sent.name == "send"
    assert sent.attributes["messaging.batch.message_count"] == 2
    assert contexts(store, COMMANDS) == contexts(store, "till") == [sent.context]


def test_the_other_properties_stay(store: MessageStore) -> None:
    """Only those of a former trace are replaced."""
    metadata = Metadata(properties={"tenant": "x", "tracestate": "old=1"}, reply_stream_name="r-1")
    with recording():
        store.write(Sell("1", "a"), f"{COMMANDS}-1", metadata=metadata)
    (message,) = store.read_category(COMMANDS)
    assert set(message.metadata.properties) == {"tenant", "traceparent"}
    assert message.metadata.reply_stream_name == "r-1"


def test_tracestate_is_carried(store: MessageStore) -> None:
    """Beside the ids, as vendors expect."""
    state = trace.TraceState([("vendor", "value")])
    remote = trace.SpanContext(7, 8, True, trace.TraceFlags(1), state)
    with recording(), trace.use_span(trace.NonRecordingSpan(remote)):
        store.write(Sell("1", "a"), f"{COMMANDS}-1")
    (message,) = store.read_category(COMMANDS)
    assert message.metadata.properties["tracestate"] == "vendor=value"


def test_what_follows_a_message_outside_a_span_stays_in_its_trace(store: MessageStore) -> None:
    """The message's own span is the parent then."""
    with recording() as spans:
        store.write(Sell("1", "a"), f"{COMMANDS}-1")
        (first,) = store.read_category(COMMANDS)
        store.write(Print("1"), f"{COMMANDS}-1", metadata=first.follow_metadata())
    one, other = spans.all()
    assert (other.trace, other.parent) == one.context


def test_that_a_trace_is_not_sampled_is_carried(store: MessageStore) -> None:
    """So nobody records a part of it."""
    with recording(ALWAYS_OFF) as spans:
        store.write(Sell("1", "a"), f"{COMMANDS}-1")
    (message,) = store.read_category(COMMANDS)
    assert not int(message.metadata.properties["traceparent"][-2:], 16) & trace.TraceFlags.SAMPLED
    assert spans.all() == []


def test_what_is_refused_is_an_error_without_its_text(store: MessageStore) -> None:
    """The text may hold data."""
    with recording() as spans:
        store.write(Sell("1", "a"), f"{COMMANDS}-1", id=uuid.UUID(int=1))
        with pytest.raises(MessageIdConflictError):
            store.write(Sell("1", "secret"), f"{COMMANDS}-1", id=uuid.UUID(int=1))
    _, refused = spans.all()
    assert refused.is_error
    assert refused.attributes["error.type"] == "reservation.errors.MessageIdConflictError"
    assert refused.events == 0
    assert "secret" not in str(refused)


@pytest.mark.parametrize(
    "bad", [None, 5, [None], [Write(Sell("1", "a"), None)], [Write(object(), "a-1")]]
)  # type: ignore[arg-type]
def test_what_cannot_be_sent_is_refused_as_without_traces(store: MessageStore, bad: Any) -> None:
    """With the same error and text."""
    with pytest.raises(Exception) as plain:  # noqa: PT011  compared below
        store.write_batch(bad)
    with recording(), pytest.raises(type(plain.value)) as traced:
        store.write_batch(bad)
    assert str(traced.value) == str(plain.value)


def test_the_same_write_in_another_trace_is_the_same_write(store: MessageStore) -> None:
    """A sender writes again after a lost answer, and may do so in another span or without any."""
    id_ = uuid.UUID(int=1)

    def write(tenant: str = "x") -> list[int]:
        metadata = Metadata(properties={"tenant": tenant})
        one = store.write(Sell("1", "a"), f"{COMMANDS}-1", id=id_)
        other = Write(Sell("1", "b"), f"{COMMANDS}-2", uuid.UUID(int=2), metadata)
        more = Write(Sell("1", "c"), f"{COMMANDS}-2", uuid.UUID(int=3), metadata)
        return [one, *store.write_batch([other, more])]

    first = write()
    with recording():
        assert write() == write() == first
        with pytest.raises(MessageIdConflictError):
            write("another")
    assert write() == first


def test_the_same_schedule_in_another_trace_is_the_same(store: MessageStore) -> None:
    """A sender may schedule again after a lost answer."""
    with recording() as spans:
        for _ in range(2):
            store.write(Print("1"), f"{COMMANDS}-1", after="1h", id=uuid.UUID(int=1))
        with pytest.raises(MessageIdConflictError):
            store.write(Print("2"), f"{COMMANDS}-1", after="1h", id=uuid.UUID(int=1))
    assert [span.name for span in spans.all()] == [f"schedule {COMMANDS}"] * 3


def test_the_async_client_sends_in_spans_of_its_tasks(database_url: str) -> None:
    """Each task has a span of its own."""

    async def send(store: AsyncMessageStore, tracer: trace.Tracer, number: int) -> None:
        with tracer.start_as_current_span(f"request {number}"):
            await store.write(Sell("1", str(number)), f"{COMMANDS}-{number}")
            await store.write(Print("1"), f"{COMMANDS}-1", after="1h")

    async def run(tracer: trace.Tracer) -> None:
        async with await AsyncMessageStore.open(database_url) as store:
            await asyncio.gather(*(send(store, tracer, n) for n in range(5)))

    with recording() as spans:
        asyncio.run(run(spans.tracer))
    for number in range(5):
        (request,) = spans.named(f"request {number}")
        children = [span.name for span in spans.all() if span.parent == request.id]
        assert children == [f"send {COMMANDS}", f"schedule {COMMANDS}"]


class InSpan:
    """An ASGI application in a span for each request, as an instrumentation makes them."""

    def __init__(self, app: Any, tracer: trace.Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        with self._tracer.start_as_current_span("request", kind=trace.SpanKind.SERVER):
            await self._app(scope, receive, send)


def test_a_request_continues_its_trace_and_is_the_same_request_in_another(
    store: MessageStore, database_url: str
) -> None:
    """A repeated request is recognized whatever its trace."""
    request = {"json": {"amount": 5}, "headers": key_headers("k1")}
    with recording() as spans:
        app = InSpan(starlette_app(database_url, timeout=0.0), spans.tracer)
        with serving(app) as address, httpx.Client(base_url=address, timeout=PATIENCE) as client:
            assert client.post("/accounts/123/deposits", **request).status_code == 202
            assert client.post("/accounts/123/deposits", **request).status_code == 202
            consumers.drain(http_account, database_url)
            answer = client.post("/accounts/123/deposits", **request)
            assert (answer.status_code, answer.json()["amount"]) == (201, 5)
    requests = {span.context for span in spans.named("request")}
    first, *again = spans.named("send account:command")
    assert {(span.trace, span.parent) for span in (first, *again)} <= requests
    assert again
    assert not any(span.is_error for span in again)
    assert contexts(store, "account:command") == [first.context]


# Reserving and handling


def test_a_trace_leads_from_the_sender_over_the_copy_to_the_events(
    store: MessageStore, database_url: str
) -> None:
    """Reserving is linked to it, and handling is a child of the send."""
    with recording() as spans:
        store.write(Sell("1", "a"), f"{COMMANDS}-1")
        consumers.drain(till(), database_url)
    sent, reserved, handled = spans.all()
    assert [reserved.name, handled.name] == [f"reserve {COMMANDS}", f"process {COPIES}"]
    assert {(span.trace, span.parent) for span in (reserved, handled)} == {sent.context}
    assert reserved.links == (sent.context,)
    assert handled.links == ()
    assert contexts(store, COPIES) == [sent.context]
    assert contexts(store, "till") == [handled.context]
    (copy,) = store.read_category(COPIES)
    assert handled.attributes == {
        "messaging.system": "message_db",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": COPIES,
        "messaging.consumer.group.name": "till",
        "messaging.message.id": copy.id,
        "reservation.message.type": "Sell",
        "reservation.message.global_position": copy.global_position,
        "reservation.redelivered": False,
        "reservation.outcome": "handled",
    }
    assert reserved.attributes["reservation.count.reserved"] == 1


def test_a_batch_of_commands_is_reserved_in_one_span_that_is_linked_to_all(
    store: MessageStore, database_url: str
) -> None:
    """A reissue in another trace is the same command, and a conflict is one whatever its trace."""
    with recording() as spans:
        for key, amount in (("a", 1), ("b", 1), ("a", 1), ("a", 2)):
            store.write(Sell("1", key, amount), f"{COMMANDS}-1")
        sent = [span.context for span in spans.all()]
        drained = consumers.drain(till(), database_url)
    assert {"reserved": 2, "duplicate": 1, "conflict": 1}.items() <= drained.counts.items()
    (reserved,) = spans.named(f"reserve {COMMANDS}")
    assert (reserved.parent, reserved.links) == ("", tuple(sent))
    counts = {
        name: reserved.attributes[f"reservation.count.{name}"]
        for name in ("reserved", "duplicate", "conflict")
    }
    assert counts == {"reserved": 2, "duplicate": 1, "conflict": 1}
    handled = spans.named(f"process {COPIES}")
    assert [(span.trace, span.parent) for span in handled] == sent[:2]


def test_what_was_sent_without_a_trace_begins_one(store: MessageStore, database_url: str) -> None:
    """Handling it is the root."""
    store.write(Sell("1", "a"), f"{COMMANDS}-1")
    with recording() as spans:
        consumers.drain(till(), database_url)
    (reserved,), (handled,) = spans.named(f"reserve {COMMANDS}"), spans.named(f"process {COPIES}")
    assert (reserved.parent, reserved.links) == (handled.parent, handled.links) == ("", ())
    assert contexts(store, "till") == [handled.context]


STRANGE: list[dict[str, Any]] = [
    {"traceparent": 5},
    {"traceparent": "00-" + "0" * 32 + "-" + "0" * 16 + "-01"},
    {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01" + "x" * 600},
    {"traceparent": ["00-" + "a" * 32 + "-" + "b" * 16 + "-01"]},
    {"tracestate": 7, "note": "traceparent"},
]


def test_what_strangers_write_in_its_place_is_passed_over(
    store: MessageStore, database_url: str
) -> None:
    """The messages are handled, each in a trace of its own."""
    for n, properties in enumerate(STRANGE):
        metadata = Metadata(properties=properties)
        store.write(Sell(str(n), "a"), f"{COMMANDS}-{n}", metadata=metadata)
    with recording() as spans:
        drained = consumers.drain(till(), database_url)
    assert drained.counts == {"reserved": len(STRANGE), "handled": len(STRANGE)}
    handled = spans.named(f"process {COPIES}")
    assert [(span.parent, span.links) for span in handled] == [("", ())] * len(STRANGE)


def test_what_a_handler_writes_carries_its_span(
    store: MessageStore, connection: Any, database_url: str
) -> None:
    """Also what is scheduled, and replies."""

    def handler(command: Sell, till: Till, context: Any) -> Sold:
        context.write(Print("2"), f"{COMMANDS}-2")
        context.write(Print("3"), f"{COMMANDS}-3", after="1h")
        context.reply(Printed("x"))
        return Sold(command.till_id, command.sale_id)

    with recording() as spans:
        store.write(Sell("1", "a"), f"{COMMANDS}-1", metadata=Metadata(reply_stream_name="reply-1"))
        consumers.drain(till(handler), database_url)
    (handled,) = spans.named(f"process {COPIES}")
    further = spans.named(f"process {COMMANDS}")
    assert [(span.trace, span.parent) for span in further] == [handled.context]
    ((scheduled,),) = connection.execute("SELECT metadata->'properties' FROM reservation.scheduled")
    assert handled.context == tuple(scheduled["traceparent"].split("-")[1:3])
    for name in ("till-1", "reply-1", f"{COMMANDS}-2"):
        assert traceparent(store.last_message(name)) == handled.context


def test_a_rejection_carries_the_span_and_is_no_error(
    store: MessageStore, database_url: str
) -> None:
    """It is an outcome as others."""

    def handler(command: Sell, till: Till, context: Any) -> Sold:
        raise Reject("no")

    with recording() as spans:
        store.write(Sell("1", "a"), f"{COMMANDS}-1")
        consumers.drain(till(handler), database_url)
    (handled,) = spans.named(f"process {COPIES}")
    assert (handled.is_error, handled.attributes["reservation.outcome"]) == (False, "rejected")
    assert contexts(store, "till") == [handled.context]


def test_another_attempt_is_a_trace_of_its_own_with_a_link(
    store: MessageStore, database_url: str
) -> None:
    """It may come long after the first."""
    left = [Broken("secret"), Broken("secret")]

    def handler(command: Sell, till: Till, context: Any) -> Sold:
        if left:
            raise left.pop()
        return Sold(command.till_id, command.sale_id)

    with recording() as spans:
        store.write(Sell("1", "a"), f"{COMMANDS}-1")
        consumers.drain(till(handler), database_url)
    (sent,) = spans.named(f"send {COMMANDS}")
    first, second, third = spans.named(f"process {COPIES}")
    assert (first.trace, first.parent, first.links) == (*sent.context, ())
    for again in (second, third):
        assert (again.parent, again.links) == ("", (sent.context,))
        assert again.attributes["reservation.redelivered"] is True
    assert [first.is_error, second.is_error, third.is_error] == [True, True, False]
    assert first.attributes["error.type"] == "tests.consumers.test_traces.Broken"
    assert first.attributes["reservation.outcome"] == "failed"
    assert first.events == 0
    assert "secret" not in str(spans.all())
    assert contexts(store, "till") == [third.context]


def test_a_letter_that_is_retried_is_a_trace_of_its_own_with_a_link(
    store: MessageStore, database_url: str
) -> None:
    """As any later attempt."""
    broken = [True]

    def handler(command: Sell, till: Till, context: Any) -> Sold:
        if broken:
            raise Broken
        return Sold(command.till_id, command.sale_id)

    component = till(handler, attempts=1)
    with recording() as spans:
        store.write(Sell("1", "a"), f"{COMMANDS}-1")
        assert consumers.drain(component, database_url).counts["dead"] == 1
        broken.clear()
        spans.clear()
        retry = ("dead-letters", "retry", "--all", "--database-url", database_url)
        assert invoke_cli(*retry).returncode == 0
        consumers.drain(component, database_url)
    (sent,) = contexts(store, COMMANDS)
    (again,) = spans.named(f"process {COPIES}")
    assert (again.parent, again.links) == ("", (sent,))
    assert contexts(store, "till") == [again.context]


def test_a_duplicate_is_a_trace_of_its_own_with_a_link(
    store: MessageStore, database_url: str
) -> None:
    """The first message's trace gets no second handling."""
    component = Component("till", entity=Till, id="till_id")
    component.message(Sold)
    component.handle(Sell, once=Processed(key="sale_id"))(sell)
    with recording() as spans:
        store.write(Sell("1", "a"), f"{COMMANDS}-1")
        store.write(Sell("1", "a"), f"{COMMANDS}-1")
        consumers.drain(component, database_url)
    first, again = spans.named(f"send {COMMANDS}")
    handled, duplicate = spans.named(f"process {COMMANDS}")
    assert (handled.trace, handled.parent) == first.context
    assert (duplicate.parent, duplicate.links) == ("", (again.context,))
    assert duplicate.attributes["reservation.outcome"] == "duplicate"


def test_a_redelivery_of_what_was_committed_changes_nothing(
    store: MessageStore, connection: Any, database_url: str
) -> None:
    """What is written again has the same ids and contents, whatever the trace."""

    def handler(command: Sell, till: Till, context: Any) -> Sold:
        context.write(Print("2"), "copies-1")
        context.write(Print("3"), "later-3", after="1h")
        return Sold(command.till_id, command.sale_id)

    with recording():
        store.write_batch([Write(Sell("1", key), f"{COMMANDS}-1") for key in "abc"])
        consumers.drain(till(handler), database_url)
        stored = (
            "SELECT id, stream_name, metadata FROM message_store.messages ORDER BY global_position"
        )
        before = connection.execute(stored).fetchall()
        connection.execute("UPDATE reservation.moves SET position = 0, message_id = NULL")
        drained = consumers.drain(till(handler), database_url)
    assert drained.counts == {"duplicate": 3, "redelivered": 3}
    assert connection.execute(stored).fetchall() == before


def test_states_in_versions_publish_the_same_in_another_trace(
    store: MessageStore, connection: Any, database_url: str
) -> None:
    """What was published stays in the trace of its sender."""

    def handler(command: Sell, till: Till, context: Any) -> Sold:
        till.sold += 1
        return Sold(command.till_id, command.sale_id)

    component = till(handler, once=StateBased())
    with recording() as spans:
        store.write(Sell("1", "a"), f"{COMMANDS}-1")
        consumers.drain(component, database_url)
        connection.execute(
            "UPDATE reservation.moves SET position = 0, message_id = NULL WHERE category = %s",
            [COPIES],
        )
        drained = consumers.drain(component, database_url)
    assert drained.counts == {"redelivered": 1}
    (sent,) = spans.named(f"send {COMMANDS}")
    first, again = spans.named(f"process {COPIES}")
    assert (first.trace, first.parent) == sent.context
    assert (again.parent, again.links) == ("", (sent.context,))
    assert contexts(store, "till") == [sent.context]


def test_async_handlers_have_their_own_spans(store: MessageStore, database_url: str) -> None:
    """Also while several are at work."""
    met = asyncio.Event()
    running: list[str] = []

    async def handler(command: Sell, till: Till, context: Any) -> Sold:
        running.append(command.till_id)
        if len(running) == 5:
            met.set()
        await asyncio.wait_for(met.wait(), 30)
        with trace.get_tracer("test").start_as_current_span(f"inside {command.till_id}"):
            await asyncio.sleep(0)
        return Sold(command.till_id, command.sale_id)

    with recording() as spans:
        for number in range(5):
            store.write(Sell(str(number), "a"), f"{COMMANDS}-{number}")
        consumers.drain(till(handler, concurrency=5), database_url)
    sent = {span.context for span in spans.named(f"send {COMMANDS}")}
    handled = spans.named(f"process {COPIES}")
    assert {(span.trace, span.parent) for span in handled} == sent
    for number in range(5):
        (inside,) = spans.named(f"inside {number}")
        (event,) = store.read_stream(f"till-{number}")
        assert (inside.trace, inside.parent) == traceparent(event)


MOST = 20  # messages of a batch that have a span


def test_no_more_than_so_many_messages_of_a_batch_have_spans(
    store: MessageStore, database_url: str
) -> None:
    """The others carry the context of their senders on."""
    inside = []

    def handler(command: Sell, till: Till, context: Any) -> Sold:
        inside.append(trace.get_current_span().get_span_context().trace_id)
        return Sold(command.till_id, command.sale_id)

    with recording() as spans:
        for number in range(MOST + 2):
            store.write(Sell("1", str(number)), f"{COMMANDS}-1")
        consumers.drain(till(handler), database_url)
    sent = spans.named(f"send {COMMANDS}")
    assert len(spans.named(f"process {COPIES}")) == MOST
    events = contexts(store, "till")
    assert [trace_id for trace_id, _ in events] == [span.trace for span in sent]
    assert [f"{trace_id:032x}" for trace_id in inside[:MOST]] == [
        span.trace for span in sent[:MOST]
    ]
    assert not set(inside[MOST:]) & {int(span.trace, 16) for span in sent}
    assert events[MOST:] == [span.context for span in sent[MOST:]]


def test_a_trace_that_is_not_sampled_stays_so(store: MessageStore, database_url: str) -> None:
    """Consumers record nothing of it, and carry it on."""
    with recording(ALWAYS_OFF):
        store.write(Sell("1", "a"), f"{COMMANDS}-1")
    with recording() as spans:
        consumers.drain(till(), database_url)
    assert spans.named(f"process {COPIES}") == []
    (sent,), (event,) = store.read_category(COMMANDS), store.read_category("till")
    assert event.metadata.properties == sent.metadata.properties


# What is not there costs nothing and disturbs nobody


class Raising(SpanProcessor):
    """Raises when a span of one of these names starts or ends."""

    def __init__(self, when: str, *names: str) -> None:
        self.when = when
        self.names = names

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self._raise("start", span)

    def on_end(self, span: Any) -> None:
        self._raise("end", span)

    def _raise(self, when: str, span: Any) -> None:
        if when == self.when and span.name in self.names:
            raise Broken("4711")


NAMES = (f"send {COMMANDS}", f"reserve {COMMANDS}", f"process {COPIES}")


def failing(command: Sell, till: Till, context: Any) -> Sold:
    raise ValueError


@pytest.mark.parametrize(("when", "handler"), [("start", sell), ("end", failing)])
def test_a_processor_that_raises_fails_no_message_and_is_logged_once(
    store: MessageStore, connection: Any, database_url: str, when: str, handler: Any
) -> None:
    """What a handler raised is still its own failure, with its own attempts."""
    with recording() as spans, logged() as log:
        spans.provider.add_span_processor(Raising(when, *NAMES))
        for key in "ab":
            store.write(Sell("1", key), f"{COMMANDS}-1")
        drained = consumers.drain(till(handler, attempts=1), database_url)
    assert drained.counts["reserved"] == 2
    if handler is sell:
        assert drained.counts["handled"] == 2
        assert [message.type for message in store.read_category("till")] == ["Sold", "Sold"]
    else:
        failed, parked = connection.execute(
            "SELECT state, error FROM reservation.dead_letters ORDER BY global_position"
        ).fetchall()
        assert (failed[0], parked[0]) == ("dead", "parked")
        assert "ValueError" in failed[1]
    (failure,) = log.named("tracing_failed")
    assert "Broken" in failure["error"]
    assert "4711" not in failure["error"]


def test_a_span_that_does_not_begin_leaves_its_parent_in_its_place(
    store: MessageStore, database_url: str
) -> None:
    """What follows stays in the trace of the sender."""
    with recording() as spans:
        spans.provider.add_span_processor(Raising("start", f"process {COPIES}"))
        store.write(Sell("1", "a"), f"{COMMANDS}-1")
        consumers.drain(till(), database_url)
        assert not trace.get_current_span().get_span_context().is_valid
    (sent,) = spans.named(f"send {COMMANDS}")
    assert contexts(store, "till") == [sent.context]


class Disabled:
    """A provider of the SDK, with which it is switched off."""


@pytest.mark.parametrize("disabled", [trace.NoOpTracerProvider(), None, Disabled])
def test_without_a_provider_that_records_nothing_is_carried(
    store: MessageStore, database_url: str, monkeypatch: pytest.MonkeyPatch, disabled: Any
) -> None:
    """Messages are as they would be without the package."""
    if disabled is Disabled:
        monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
        disabled = TracerProvider(shutdown_on_exit=False)
    with provided(disabled):
        store.write(Sell("1", "a"), f"{COMMANDS}-1")
        consumers.drain(till(), database_url)
    for category in (COMMANDS, COPIES, "till"):
        assert [m.metadata.properties for m in store.read_category(category)] == [{}]
