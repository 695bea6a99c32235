"""OpenTelemetry metrics of a member: plain numbers, read when they are collected."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from opentelemetry.metrics import CallbackOptions, Observation

from lakemq.meta_service.api.partition_health import (
    LEADERLESS,
    MOVING,
    UNDER_MIN_IN_SYNC,
    UNDER_REPLICATED,
)
from lakemq.meta_service.control.controller import Controller
from lakemq.meta_service.control.partition_counts import ELIGIBLE_USED, PartitionCounts
from lakemq.meta_service.core.latencies import LATENCY_BOUNDS_MS, Latencies

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

    from lakemq.meta_service.server.assembly import Assembly


def _read(value: Callable[[], float]) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda options: [Observation(value())]


def register(meter: Meter, member: Assembly, snapshot_age_s: Callable[[], float]) -> None:
    """Make the member's figures readable. `snapshot_age_s`: -1 when there is none."""
    node, cache, hub, gateway = member.node, member.cache, member.hub, member.gateway

    gauges: list[tuple[str, Callable[[], float], str, str]] = [
        ("raft.term", lambda: node.term, "{term}", "Term of this member."),
        ("raft.leader", lambda: int(node.is_leader), "", "1 on the leader."),
        ("raft.commit_index", lambda: node.commit_index, "{entry}", "Last log index committed."),
        ("raft.applied_index", lambda: node.applied_index, "{entry}", "Last log index applied."),
        ("raft.lag", member.lag, "{entry}",
         "Entries of the slowest member behind the leader's log."),
        ("raft.voters", lambda: len(node.group.voters), "{member}", "Members that vote."),
        ("raft.learners", lambda: len(node.group.learners), "{member}",
         "Members that do not vote yet."),
        ("raft.log.bytes", lambda: member.log.size_bytes, "By", "Size of the log file."),
        ("raft.waiting", lambda: node.waiting, "{command}", "Commands that wait for a majority."),
        ("snapshot.age", snapshot_age_s, "s", "Age of the newest snapshot; -1: none."),
        ("revision", lambda: cache.revision, "{revision}", "Revision of the catalog."),
        ("cache.keys", lambda: len(cache), "{key}", "Keys in memory."),
        ("cache.bytes", lambda: cache.size_bytes, "By", "Keys and values in memory."),
        ("watchers", lambda: hub.watchers, "{watch}", "Open watches."),
    ]  # fmt: skip
    counters: list[tuple[str, Callable[[], float], str, str]] = [
        ("raft.elections", lambda: node.elections, "{election}", "Elections begun here."),
        ("raft.syncs", lambda: member.log.syncs, "{fsync}", "Fsyncs of the log."),
        ("raft.read_rounds", lambda: node.rounds, "{round}", "Rounds for linearizable reads."),
        ("raft.snapshots.sent", lambda: node.snapshots_sent, "{snapshot}",
         "Snapshots sent to members."),
        ("raft.snapshots.installed", lambda: node.snapshots_installed, "{snapshot}",
         "Snapshots taken."),
        ("proposals", lambda: gateway.proposed, "{command}", "Commands proposed here."),
        ("proposal.time", lambda: gateway.latencies.total_ms / 1000, "s",
         "Time spent on commands."),
        ("cache.hits", lambda: cache.hits, "{read}", "Reads of a key that was there."),
        ("cache.misses", lambda: cache.misses, "{read}", "Reads of a key that was absent."),
    ]  # fmt: skip
    if member.wire is not None:
        wire = member.wire
        counters += [
            ("raft.sent", lambda: wire.bytes_out, "By", "Sent to other members."),
            ("raft.received", lambda: wire.bytes_in, "By", "Received from other members."),
            (
                "raft.dropped",
                lambda: wire.dropped,
                "{message}",
                "Messages dropped, to be repeated.",
            ),
        ]
    for name, value, unit, description in gauges:
        meter.create_observable_gauge(f"lakemq.meta.{name}", [_read(value)], unit, description)
    for name, value, unit, description in counters:
        meter.create_observable_counter(f"lakemq.meta.{name}", [_read(value)], unit, description)
    _register_latencies(meter, gateway.latencies)
    _register_cluster(meter, member.controller)


_LACKING: Final = {
    LEADERLESS: "Partitions that no node leads.",
    UNDER_MIN_IN_SYNC: "Partitions with fewer in-sync replicas than acknowledgements need.",
    UNDER_REPLICATED: "Partitions with fewer in-sync replicas than wanted.",
    MOVING: "Partitions on their way to other nodes.",
    ELIGIBLE_USED: "Partitions with replicas that left the in-sync set, yet may come to lead.",
}


def _register_cluster(meter: Meter, controller: Controller) -> None:
    """What the leader alone tells: a sum or a maximum over members is its word."""

    def gauge(name: str, value: Callable[[], float], unit: str, description: str) -> None:
        def observe(options: CallbackOptions) -> Iterable[Observation]:
            if controller.is_active:
                yield Observation(value())

        meter.create_observable_gauge(f"lakemq.meta.{name}", [observe], unit, description)

    gauge(
        "cluster.nodes_wanted",
        lambda: controller.advice().nodes_wanted,
        "{node}",
        "Nodes to add; negative: to take out.",
    )
    for name, description in _LACKING.items():
        gauge(
            f"partitions.{name.replace('-', '_')}",
            partial(_count, controller.partition_counts, name),
            "{partition}",
            description,
        )


def _count(counts: PartitionCounts, name: str) -> int:
    return counts.counts().get(name, 0)


def _register_latencies(meter: Meter, latencies: Latencies) -> None:
    bounds = [f"{bound:g}" for bound in LATENCY_BOUNDS_MS] + ["+Inf"]

    def observe(options: CallbackOptions) -> Iterable[Observation]:
        count = 0
        for bound, more in zip(bounds, latencies.counts, strict=True):
            count += more
            yield Observation(count, {"le_ms": bound})

    meter.create_observable_counter(
        "lakemq.meta.proposal.within",
        [observe],
        "{command}",
        "Commands answered within so many ms.",
    )
