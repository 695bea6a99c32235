"""OpenTelemetry metrics of replicated partitions: plain numbers, read when they are collected."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from lakemq.broker_core.api.leadership import leadership
from lakemq.broker_core.api.types import TopicInfo
from lakemq.broker_core.replication.leading import LeadingPartition
from lakemq.broker_core.replication.manager import Replication


def register_replication_metrics(
    meter: Meter, node_id: str, replication: Replication, topics: Callable[[], Sequence[TopicInfo]]
) -> None:
    """Make the figures of a node readable. Those of partitions are told by one node for each, so
    that they may be added up: by its leader, or where it has none by its first replica."""

    def led(holds: Callable[[LeadingPartition], bool]) -> Callable[[], float]:
        return lambda: sum(map(holds, replication.led()))

    def leaderless() -> float:
        return sum(
            leadership(topic, number).leader is None
            and leadership(topic, number).replicas[:1] == (node_id,)
            for topic in topics()
            for number in range(topic.partitions)
        )

    gauges: list[tuple[str, Callable[[], float], str, str]] = [
        ("replication.lag_records",
         lambda: max(map(_lag, replication.led()), default=0), "{record}",
         "Records that the slowest follower of a partition led here is behind."),
        ("replication.lag_time", lambda: replication.lag_ms() / 1000, "s",
         "How long the slowest follower of a partition led here has been behind."),
        ("partitions.led", lambda: len(replication.led()), "{partition}",
         "Replicated partitions led here."),
        ("partitions.followed", lambda: len(replication.followed()), "{partition}",
         "Partitions followed here."),
        ("partitions.under_replicated", led(_is_under_replicated), "{partition}",
         "Partitions led here of which not all replicas are in sync."),
        ("partitions.under_min_isr", led(lambda each: bool(each.core.shortage())), "{partition}",
         "Partitions led here with fewer replicas in sync than they need."),
        ("partitions.leaderless", leaderless, "{partition}",
         "Partitions without a leader, of which this node is the first replica."),
    ]  # fmt: skip
    counters: list[tuple[str, Callable[[], float], str, str]] = [
        ("replication.received", lambda: replication.bytes_in, "By", "Batches from leaders."),
        ("replication.sent", lambda: replication.bytes_out, "By", "Batches to followers."),
        ("isr.changes", lambda: replication.changes.changes, "{change}",
         "Changes of in-sync sets that this node asked for and got."),
        ("elections", lambda: replication.elections, "{election}",
         "Times that this node began to lead a replicated partition."),
    ]  # fmt: skip
    for name, value, unit, description in gauges:
        meter.create_observable_gauge(f"lakemq.{name}", [_read(value)], unit, description)
    for name, value, unit, description in counters:
        meter.create_observable_counter(f"lakemq.{name}", [_read(value)], unit, description)


def _read(value: Callable[[], float]) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda options: [Observation(value())]


def _lag(leading: LeadingPartition) -> int:
    core = leading.core
    return max((core.lag(node) or 0 for node in core.view.replicas - {core.node_id}), default=0)


def _is_under_replicated(leading: LeadingPartition) -> bool:
    view = leading.core.view
    return len(view.in_sync) < len(view.replicas)
