"""Whether the cluster needs more nodes, or fewer: sentences for operators, a number for scalers.

Nothing is started or stopped by it. A resource counts by the mean of the active nodes, since a
rebalance evens them out; what one node alone has too much of is a matter for that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from lakemq.meta_service.api.types import NodeRegistration
from lakemq.meta_service.catalog.control_commands import ACTIVE, FENCED
from lakemq.meta_service.control.balance import DISK_FIGURE, FULL_RATIO
from lakemq.meta_service.control.load_history import LoadHistory

HORIZON_H: Final = 12.0
"""A node is ordered, installed and filled within this time."""
TOLD_H: Final = 24.0 * 365
"""What is full later than this is not told: such a trend is noise, or no number of hours at all."""
ROOM: Final = 0.6
"""Part of a limit that must suffice for one node fewer before that is advised: what was just added
is not advised away."""
NODES_MIN: Final = 3
"""No node is advised away below this: a group of two stands still when one dies."""
UNEVEN: Final = 0.2
"""A node that is this much above the mean (of the whole) is a matter for a rebalance."""


class Resource(NamedTuple):
    """What nodes can run out of."""

    name: str
    figure: str
    """Of the heartbeats."""
    whole: float
    """All that a node has, in units of the figure."""
    limit: float
    """Part of the whole that may be used: beyond it there is no room for a node that fails."""


RESOURCES: Final = (
    Resource("disk", DISK_FIGURE, 1.0, FULL_RATIO),
    Resource("CPU", "cpu_ratio", 1.0, 0.8),
    Resource("connections", "connections", 100_000.0, 0.8),
)


class Advice(NamedTuple):
    """What to do."""

    nodes_wanted: int
    """More than there are; negative: fewer; 0: it is well as it is."""
    lines: tuple[str, ...]
    """One sentence each; none: there is nothing to say."""


class _Use(NamedTuple):
    """A resource over all active nodes that report it, as parts of the whole."""

    resource: Resource
    mean: float
    per_hour: float | None
    highest: float
    at: str
    """The node with the highest."""

    @property
    def soon(self) -> float:
        """At the end of the horizon; nothing is expected to shrink."""
        return self.mean + max(0.0, self.per_hour or 0.0) * HORIZON_H

    def described(self) -> str:
        """As `disk 0.81, +2.0 %/h: full in 9 h`."""
        text = f"{self.resource.name} {self.mean:.2f}"
        if self.per_hour is None or self.per_hour <= 0:
            return text
        left_h = max(0.0, 1.0 - self.mean) / self.per_hour
        if left_h > TOLD_H:
            return text
        return f"{text}, +{self.per_hour * 100:.1f} %/h: full in {math.floor(left_h)} h"


def advise(nodes: Sequence[NodeRegistration], history: LoadHistory, replication: int = 1) -> Advice:
    """`replication`: the greatest that any topic wants."""
    active = sorted(node.node_id for node in nodes if node.state == ACTIVE)
    lines = [
        f"{node.node_id} is fenced: start it, or `lakemq node decommission {node.node_id}`"
        for node in nodes
        if node.state == FENCED
    ]
    uses = [use for resource in RESOURCES if (use := _use(resource, active, history)) is not None]
    lines += [
        f"rebalance: {use.at} has {use.resource.name} {use.highest:.2f}, the mean is {use.mean:.2f}"
        for use in uses
        if use.highest >= use.resource.limit and use.highest - use.mean >= UNEVEN
    ]
    wanted, reason = max(
        [(max(0, replication - len(active)), f"topics want {replication} replica(s)")]
        + [(_missing(use, len(active)), use.described()) for use in uses]
    )
    if wanted:
        return Advice(wanted, (f"add {wanted} node{'s' * (wanted > 1)} ({reason})", *lines))
    if not lines and uses and _can_spare(uses, len(active), replication):
        least = min(active, key=lambda node: (history.mean(node, DISK_FIGURE) or 0.0, node))
        shown = ", ".join(f"{use.resource.name} {use.mean:.2f}" for use in uses)
        return Advice(-1, (f"{least} could go ({shown})",))
    return Advice(0, tuple(lines))


def _use(resource: Resource, nodes: Sequence[str], history: LoadHistory) -> _Use | None:
    """None: no node reports it."""
    means = {
        node: mean / resource.whole
        for node in nodes
        if (mean := history.mean(node, resource.figure)) is not None
    }
    if not means:
        return None
    slopes = [
        slope / resource.whole
        for node in means
        if (slope := history.per_hour(node, resource.figure)) is not None
    ]
    at = max(means, key=lambda node: (means[node], node))
    return _Use(
        resource,
        sum(means.values()) / len(means),
        sum(slopes) / len(slopes) if slopes else None,
        means[at],
        at,
    )


def _missing(use: _Use, nodes: int) -> int:
    """Nodes to add so that the mean stays below the limit until the end of the horizon."""
    return max(0, math.ceil(nodes * use.soon / use.resource.limit - 1e-9) - nodes)


def _can_spare(uses: Sequence[_Use], nodes: int, replication: int) -> bool:
    """Whether one node fewer would do. Not before trends are known."""
    if nodes <= max(NODES_MIN, replication):
        return False
    return all(
        use.per_hour is not None and use.soon * nodes / (nodes - 1) <= use.resource.limit * ROOM
        for use in uses
    )
