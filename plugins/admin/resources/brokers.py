"""The broker of a node that has one."""

from __future__ import annotations

from lakemq.broker_core.api.administration.node import AdministeredNode
from lakemq.broker_core.api.errors import Unavailable
from lakemq.broker_core.api.ports import Broker


def broker_of(node: AdministeredNode) -> Broker:
    """Raises Unavailable: the node is a member of the MetaService alone."""
    if node.broker is None:
        raise Unavailable(
            f"{node.node_id} is no broker: ask the admin API of one that is, see /api/v1/nodes"
        )
    return node.broker
