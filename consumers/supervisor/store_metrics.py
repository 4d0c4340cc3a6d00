"""The store's record of consumers, as Prometheus metrics: the same from each of their hosts."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric

from consumers.group.inspection.stored_positions import ConsumerId
from consumers.group.inspection.summary import ConsumerSummary
from consumers.group.inspection.waits import KINDS
from consumers.supervisor.store_reader import StoreReading
from reservation.inspection.schedule import SERIES_STATES
from reservation.messages.stream_name import command_category

_LABELS = ("consumer", "category")

# A metric, and its value; there is no sample where that is None.
_Gauges = Sequence[tuple[GaugeMetricFamily, Callable[[ConsumerSummary], float | None]]]


def store_metrics(consumer_ids: Sequence[ConsumerId], reading: StoreReading) -> Iterator[Metric]:
    """Yield the metrics of what was read; what is not known has no sample."""
    up = GaugeMetricFamily(
        "reservation_store_up",
        "Whether the store could be read for the metrics that come from it",
        labels=_LABELS,
    )
    read_at = GaugeMetricFamily(
        "reservation_store_read_timestamp_seconds",
        "When that was last done, by the server's clock",
        labels=_LABELS,
    )
    overdue = GaugeMetricFamily(
        "reservation_scheduled_overdue_messages",
        "Scheduled messages of the store that are overdue, up to 100,000",
        labels=_LABELS,
    )
    breaker_open = GaugeMetricFamily(
        "reservation_breaker_open",
        "Whether messages of a type wait because the breaker of their handler is not closed",
        labels=(*_LABELS, "type"),
    )
    letters = GaugeMetricFamily(
        "reservation_open_letters",
        "Messages that are set aside, by what they wait for",
        labels=[*_LABELS, "reason"],
    )
    series = GaugeMetricFamily(
        "reservation_series",
        "Recurring commands of a component, by state",
        labels=[*_LABELS, "state"],
    )
    gauges = [*_of_positions(), *_of_dead_letters()]
    for consumer_id in consumer_ids:
        up.add_metric(consumer_id, reading.up)
    if reading.summary is not None:
        states = Counter(
            (one.component, one.state(reading.summary.time)) for one in reading.summary.series
        )
        for consumer in reading.summary.consumers:
            consumer_id = (consumer.consumer, consumer.category)
            for kind in KINDS:
                letters.add_metric([*consumer_id, kind], consumer.letters.counts.get(kind, 0))
            if consumer.category == command_category(consumer.consumer):
                for state in SERIES_STATES:
                    series.add_metric([*consumer_id, state], states[consumer.consumer, state])
            read_at.add_metric(consumer_id, reading.summary.time.timestamp())
            overdue.add_metric(consumer_id, reading.summary.schedule.overdue)
            for family, value in gauges:
                if (number := value(consumer)) is not None:
                    family.add_metric(consumer_id, number)
        for one in reading.summary.breakers:
            breaker_open.add_metric((one.consumer, one.category, one.type), one.is_open)
    yield from (up, read_at, overdue, letters, series, breaker_open)
    yield from (family for family, _ in gauges)


def _of_positions() -> _Gauges:
    return [
        (
            GaugeMetricFamily(
                "reservation_partitions", "Partitions of the category", labels=_LABELS
            ),
            lambda consumer: consumer.partitions,
        ),
        (
            GaugeMetricFamily(
                "reservation_paused", "1 if it is paused, and handles nothing", labels=_LABELS
            ),
            lambda consumer: consumer.is_paused,
        ),
        (
            GaugeMetricFamily(
                "reservation_partitions_without_holder",
                "Partitions of the category that no process reads",
                labels=_LABELS,
            ),
            lambda consumer: consumer.without_holder,
        ),
        (
            GaugeMetricFamily(
                "reservation_lag_messages",
                "Messages that are not handled, of the next 100,000 of the category",
                labels=_LABELS,
            ),
            lambda consumer: consumer.lag.messages,
        ),
        (
            GaugeMetricFamily(
                "reservation_lag_seconds",
                "Age of the oldest of them; 0 if there is none",
                labels=_LABELS,
            ),
            lambda consumer: consumer.lag.seconds,
        ),
    ]


def _of_dead_letters() -> _Gauges:
    return [
        (
            GaugeMetricFamily(
                "reservation_dead_letters", "Dead letters that are open", labels=_LABELS
            ),
            lambda consumer: consumer.letters.dead,
        ),
        (
            GaugeMetricFamily(
                "reservation_parked_messages",
                "Messages that are parked behind another of their entity",
                labels=_LABELS,
            ),
            lambda consumer: consumer.letters.parked,
        ),
        (
            GaugeMetricFamily(
                "reservation_parked_entities",
                "Entities whose later messages are parked",
                labels=_LABELS,
            ),
            lambda consumer: consumer.parked_entities,
        ),
        (
            GaugeMetricFamily(
                "reservation_retries_waiting",
                "Messages that wait for their next attempt",
                labels=_LABELS,
            ),
            lambda consumer: consumer.letters.waiting,
        ),
        (
            GaugeMetricFamily(
                "reservation_next_retry_timestamp_seconds",
                "When the first of them is due, by the server's clock; absent if none waits",
                labels=_LABELS,
            ),
            lambda consumer: consumer.next_attempt_at and consumer.next_attempt_at.timestamp(),
        ),
    ]
