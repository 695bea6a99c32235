"""Nodes as operators see them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from lakemq.broker_core.api.administration.operations import NodeReport
from lakemq.meta_service.api.types import NodeLoad, NodeRegistration


def node_reports(
    nodes: Sequence[NodeRegistration],
    loads: Mapping[str, NodeLoad],
    led: Counter[str | None],
    held: Counter[str],
) -> list[NodeReport]:
    """`led`, `held`: partitions that each leads, and of which it has a replica."""
    found = []
    for each in nodes:
        load = loads.get(each.node_id)
        found.append(
            NodeReport(
                each.node_id,
                each.state,
                each.rack,
                led[each.node_id],
                held[each.node_id],
                dict(load.figures) if load else {},
                load.silent_s if load else None,
                each.version,
                each.broker_epoch,
                each.roles,
                dict(each.addresses),
            )
        )
    return found
