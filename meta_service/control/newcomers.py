"""Which nodes have joined the cluster lately. Pure: it follows from the catalog and from what
heartbeats say, so whichever member leads finds the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lakemq.meta_service.api.types import NodeRegistration
from lakemq.meta_service.catalog.control_commands import ACTIVE
from lakemq.meta_service.control.balance import Loads

UPTIME_FIGURE: Final = "uptime_s"


def newcomers(
    nodes: Iterable[tuple[NodeRegistration, int]], loads: Loads, within_s: float
) -> set[str]:
    """Active nodes that were registered for the first time less than `within_s` ago.

    `nodes`: with the revision at which each was registered first. The catalog has no clock that
    could date it, but a process says how long it has been there: what came after its own
    registration is younger than that. A node that was only started again came before.
    """
    young = {name for name, load in loads.items() if load.get(UPTIME_FIGURE, within_s) < within_s}
    if not young:
        return set()
    # Those that have stopped said last how old they were then.
    active = [(node, revision) for node, revision in nodes if node.state == ACTIVE]
    began = min((n.broker_epoch for n, _ in active if n.node_id in young), default=None)
    return {n.node_id for n, revision in active if began is not None and revision >= began}
