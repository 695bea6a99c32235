"""Broker nodes in the catalog. Pure."""

from __future__ import annotations

from typing import Any

from meta_service.api.types import NodeRegistration
from meta_service.catalog.commands import RegisterNode
from meta_service.catalog.draft import Draft
from meta_service.catalog.placement import Candidate
from meta_service.catalog.tables import KEYS, NODE_PREFIX, decode_row, pack, unpack

ACTIVE = "active"


def node_key(node_id: str) -> bytes:
    return NODE_PREFIX + node_id.encode()


def encode_node(node: NodeRegistration) -> bytes:
    return pack(
        [
            dict(sorted(node.addresses.items())),
            node.rack,
            node.version,
            node.feature_level,
            node.broker_epoch,
            node.state,
        ]
    )


def decode_node(key: bytes, value: bytes) -> NodeRegistration:
    fields: Any = unpack(value)
    addresses, rack, version, feature_level, broker_epoch, state = fields
    return NodeRegistration(
        key[len(NODE_PREFIX) :].decode(),
        addresses,
        rack,
        version,
        feature_level,
        broker_epoch,
        state,
    )


def all_nodes(draft: Draft) -> list[NodeRegistration]:
    return [
        decode_node(key[len(KEYS) :], decode_row(data).value)
        for key, data in draft.scan(KEYS + NODE_PREFIX)
    ]


def candidates(draft: Draft) -> list[Candidate]:
    """Nodes that may take new replicas."""
    return [Candidate(n.node_id, n.rack) for n in all_nodes(draft) if n.state == ACTIVE]


def register_node(draft: Draft, command: RegisterNode) -> Any:
    """The node's broker epoch: the revision of this registration."""
    node = NodeRegistration(
        command.node_id,
        command.addresses,
        command.rack,
        command.version,
        command.feature_level,
        draft.revision,
        ACTIVE,
    )
    draft.put_row(node_key(command.node_id), encode_node(node))
    return draft.revision
