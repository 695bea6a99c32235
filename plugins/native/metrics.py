"""What OpenTelemetry reads of produce, fetch, groups and queues: plain numbers, on demand."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from lakemq.broker_core.api.groups.ports import GroupCoordinators
from lakemq.broker_core.api.queues.ports import QueueCoordinators
from lakemq.broker_core.api.queues.types import QueueLevels
from lakemq.plugins.native.services.records import NativeService

OVERFLOW: Final = {"otel.metric.overflow": True}
"""Attributes of the sum of all that have no series of their own (OpenTelemetry, metrics SDK,
cardinality limits)."""


class LargestLags:
    """Clients choose the names of groups, and each is a series of its own to the metrics: only the
    largest lags are shown."""

    def __init__(self, groups: GroupCoordinators, most: int) -> None:
        self.left_out = 0
        """Pairs of group and topic that were not shown last."""
        self._groups = groups
        self._most = most

    def read(self) -> Mapping[tuple[str, str], int]:
        """(group, topic) -> lag."""
        lags = self._groups.lags()
        self.left_out = max(0, len(lags) - self._most)
        if not self.left_out:
            return lags
        return dict(heapq.nlargest(self._most, lags.items(), key=lambda each: each[1]))


def observe_native(
    meter: Meter, service: NativeService, groups: GroupCoordinators, series_max: int
) -> None:
    """Instruments below `lakemq.native`; at most `series_max` groups and topics are shown."""
    shown = LargestLags(groups, series_max)

    def lags(_: CallbackOptions) -> Iterable[Observation]:
        for (group, topic), lag in shown.read().items():
            yield Observation(lag, {"group": group, "topic": topic})

    _counters(
        meter,
        ("produce.bytes", lambda: service.bytes_in, "By", "Bytes of batches from producers."),
        ("produce.batches", lambda: service.batches_in, "{batch}", "Batches from producers."),
        ("fetch.bytes", lambda: service.bytes_out, "By", "Bytes of batches to readers."),
        ("group.commits", lambda: groups.counters.commits, "{commit}",
         "Commits of consumer groups."),
        ("group.rebalances", lambda: groups.counters.rebalances, "{rebalance}",
         "Times that a group divided its partitions among its members."),
    )  # fmt: skip
    meter.create_observable_gauge(
        "lakemq.native.group.lag", [lags], "{record}",
        "Records that a group has not committed yet, the greatest `lag_metrics_max` of them.",
    )  # fmt: skip
    meter.create_observable_gauge(
        "lakemq.native.group.lag.left_out",
        [lambda _: [Observation(shown.left_out)]],
        "{group}",
        "Pairs of group and topic whose lag is not shown.",
    )


def observe_queues(meter: Meter, queues: QueueCoordinators, series_max: int) -> None:
    """Instruments below `lakemq.native.queue`; queues beyond `series_max` are added up in one
    series."""

    def gauge(name: str, read: Callable[[QueueLevels], int], unit: str, description: str) -> None:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            rest = 0
            for number, queue in enumerate(queues.levels()):
                if number < series_max:
                    labels = {"group": queue.group, "topic": queue.topic}
                    yield Observation(read(queue), labels)
                else:
                    rest += read(queue)
            if rest:
                yield Observation(rest, OVERFLOW)

        meter.create_observable_gauge(f"lakemq.native.queue.{name}", [observe], unit, description)

    _counters(
        meter,
        ("queue.delivered", lambda: queues.counters.delivered, "{record}", "Records handed out."),
        ("queue.settled", lambda: queues.counters.settled, "{record}", "Records done with."),
        ("queue.expired", lambda: queues.counters.expired, "{record}",
         "Records whose lock ran out before they were settled."),
        ("queue.dead_letters", lambda: queues.counters.dead_letters, "{record}",
         "Dead letters written."),
    )  # fmt: skip
    gauge("consumers", lambda queue: queue.consumers, "{consumer}", "Consumers of a queue.")
    gauge("held", lambda queue: queue.held, "{record}", "Records handed out and not settled.")
    gauge(
        "backlog",
        lambda queue: queue.backlog,
        "{record}",
        "Records not settled, handed out or not.",
    )


def _counters(meter: Meter, *counters: tuple[str, Callable[[], int], str, str]) -> None:
    for name, read, unit, description in counters:
        meter.create_observable_counter(
            f"lakemq.native.{name}", [_observed(read)], unit, description
        )


def _observed(read: Callable[[], int]) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _: [Observation(read())]
