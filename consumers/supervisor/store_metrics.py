"""The store's record of consumers, as Prometheus metrics: the same from each of their hosts."""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric

from consumers.group.inspection.stored_positions import ConsumerId
from consumers.group.inspection.summary import ConsumerSummary
from consumers.supervisor.store_reader import StoreReading

_LABELS = ("consumer", "category")

# A metric, and its value; there is no sample where that is None.
_Gauges = Sequence[tuple[GaugeMetricFamily, Callable[[ConsumerSummary], float | None]]]


def store_metrics(reads: Sequence[ConsumerId], reading: StoreReading) -> Iterator[Metric]:
    """Yield what was read; there is no sample of what is not known."""
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
    gauges = [*_of_positions(), *_of_dead_letters()]
    for names in reads:
        up.add_metric(names, reading.up)
    if reading.summary is not None:
        for one in reading.summary.consumers:
            names = (one.consumer, one.category)
            read_at.add_metric(names, reading.summary.time.timestamp())
            overdue.add_metric(names, reading.summary.schedule.overdue)
            for family, value in gauges:
                if (number := value(one)) is not None:
                    family.add_metric(names, number)
    yield from (up, read_at, overdue, *(family for family, _ in gauges))


def _of_positions() -> _Gauges:
    return [
        (
            GaugeMetricFamily(
                "reservation_partitions", "Partitions of the category", labels=_LABELS
            ),
            lambda one: one.partitions,
        ),
        (
            GaugeMetricFamily(
                "reservation_partitions_without_holder",
                "Partitions of the category that no process reads",
                labels=_LABELS,
            ),
            lambda one: one.without_holder,
        ),
        (
            GaugeMetricFamily(
                "reservation_lag_messages",
                "Messages that are not handled, of the next 100,000 of the category",
                labels=_LABELS,
            ),
            lambda one: one.lag.messages,
        ),
        (
            GaugeMetricFamily(
                "reservation_lag_seconds",
                "Age of the oldest of them; 0 if there is none",
                labels=_LABELS,
            ),
            lambda one: one.lag.seconds,
        ),
    ]


def _of_dead_letters() -> _Gauges:
    return [
        (
            GaugeMetricFamily(
                "reservation_dead_letters", "Dead letters that are open", labels=_LABELS
            ),
            lambda one: one.dead,
        ),
        (
            GaugeMetricFamily(
                "reservation_parked_messages",
                "Messages that are parked behind another of their entity",
                labels=_LABELS,
            ),
            lambda one: one.parked,
        ),
        (
            GaugeMetricFamily(
                "reservation_parked_entities",
                "Entities whose later messages are parked",
                labels=_LABELS,
            ),
            lambda one: one.parked_entities,
        ),
        (
            GaugeMetricFamily(
                "reservation_retries_waiting",
                "Messages that wait for their next attempt",
                labels=_LABELS,
            ),
            lambda one: one.waiting,
        ),
        (
            GaugeMetricFamily(
                "reservation_next_retry_timestamp_seconds",
                "When the first of them is due, by the server's clock; absent if none waits",
                labels=_LABELS,
            ),
            lambda one: one.next_attempt_at and one.next_attempt_at.timestamp(),
        ),
    ]
