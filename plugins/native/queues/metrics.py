"""What OpenTelemetry reads of queues."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from lakemq.plugins.native.queues.host import QueueHost
from lakemq.plugins.native.queues.queue import RunningQueue


def observe_queues(meter: Meter, host: QueueHost) -> None:
    """Register the instruments; they read plain numbers on demand."""
    counters = host.counters

    def counter(name: str, read: Callable[[], int]) -> None:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            yield Observation(read())

        meter.create_observable_counter(f"lakemq.native.queue.{name}", [observe])

    def gauge(name: str, read: Callable[[RunningQueue], int]) -> None:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            for queue in host.queues():
                labels = {"group": queue.group, "topic": queue.topic.name}
                yield Observation(read(queue), labels)

        meter.create_observable_gauge(f"lakemq.native.queue.{name}", [observe])

    counter("delivered", lambda: counters.delivered)
    counter("settled", lambda: counters.settled)
    counter("expired", lambda: counters.expired)
    counter("dead_letters", host.dead_letters)
    gauge("consumers", lambda queue: len(queue.consumers))
    gauge(
        "held", lambda queue: sum(partition.state.held for partition in queue.partitions.values())
    )
    gauge(
        "backlog",
        lambda queue: sum(
            partition.state.backlog(partition.log.high_watermark)
            for partition in queue.partitions.values()
        ),
    )
