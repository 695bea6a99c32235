"""Broker nodes in the catalog, and which of them hold a new partition's replicas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from lakemq.meta_service.api.errors import AlreadyExists, CompareFailed, InvalidArgument, NotFound
from lakemq.meta_service.api.types import NodeRegistration, machine_of
from lakemq.meta_service.catalog.commands import RegisterNode, RegisterStorage
from lakemq.meta_service.catalog.control_commands import (
    ACTIVE,
    DRAINING,
    FENCED,
    RemoveNode,
    RetireNode,
    SetNodeState,
)
from lakemq.meta_service.catalog.draft import Draft
from lakemq.meta_service.catalog.tables import (
    KEYS,
    NODE_PREFIX,
    REPLICA_COUNTS,
    decode_number,
    decode_row,
    pack,
    unpack,
)

_DEFAULTS: Final = ("", (), False, False, True)
"""Of the last fields of a node's row, which are left out where they say nothing."""
BROKER_ROLE: Final = "broker"


def node_key(node_id: str) -> bytes:
    """The node's key in the KV space."""
    return NODE_PREFIX + node_id.encode()


def encode_node(node: NodeRegistration) -> bytes:
    """The value of a node's row; addresses by name, so that members store the same bytes."""
    fields = [
        dict(sorted(node.addresses.items())),
        node.rack,
        node.version,
        node.feature_level,
        node.broker_epoch,
        node.state,
        node.heartbeats,
    ]
    # Members below the level of a field could not read a row that holds it.
    more = [node.storage_id, node.roles, node.clean, node.leaving, node.admitted]
    while more and more[-1] == _DEFAULTS[len(more) - 1]:
        more.pop()
    return pack(fields + more)


def decode_node(key: bytes, value: bytes) -> NodeRegistration:
    """The node of a row that `encode_node` made."""
    fields: Any = unpack(value)
    addresses, rack, version, feature_level, broker_epoch, state, heartbeats, *more = fields
    return NodeRegistration(
        key[len(NODE_PREFIX) :].decode(),
        addresses,
        rack,
        version,
        feature_level,
        broker_epoch,
        state,
        heartbeats,
        *more,
    )


def all_nodes(draft: Draft) -> list[NodeRegistration]:
    """All registered nodes, by name, as the command sees them."""
    return [
        decode_node(key[len(KEYS) :], decode_row(data).value)
        for key, data in draft.scan(KEYS + NODE_PREFIX)
    ]


def candidates(draft: Draft) -> list[Candidate]:
    """Nodes that may take new replicas."""
    nodes = [node for node in all_nodes(draft) if holds_replicas(node)]
    active = [node for node in nodes if node.state == ACTIVE]
    # Rather a node that is fenced for the moment than none at all.
    return [Candidate(node.node_id, node.rack, machine_of(node)) for node in active or nodes]


def holds_replicas(node: NodeRegistration) -> bool:
    """Whether the node's roles let it have partitions."""
    return not node.roles or BROKER_ROLE in node.roles


def register_node(draft: Draft, command: RegisterNode) -> Any:
    """The node's broker epoch: the revision of this registration.

    Raises AlreadyExists, CompareFailed where two processes would hold the same name or disk.
    """
    storage_id = command.storage_id if isinstance(command, RegisterStorage) else ""
    if storage_id:
        check_storage(draft, command.node_id, storage_id)
    node = NodeRegistration(
        command.node_id,
        command.addresses,
        command.rack,
        command.version,
        command.feature_level,
        # Unique and growing, as every command's revision: a broker epoch is never given twice.
        draft.revision,
        FENCED if command.heartbeats else ACTIVE,
        command.heartbeats,
        storage_id,
    )
    draft.put_row(node_key(command.node_id), encode_node(node))
    return draft.revision


def check_storage(draft: Draft, node_id: str, storage_id: str) -> None:
    """Raises AlreadyExists, CompareFailed where two processes would hold the same name or disk."""
    for node in all_nodes(draft):
        # Two nodes with one disk content would both take themselves for the same replicas.
        if node.node_id != node_id and node.storage_id == storage_id:
            raise AlreadyExists(
                f"storage {storage_id} belongs to node {node.node_id!r} ({node.state}): the data "
                f"folder of {node_id!r} was copied from it. Start {node_id!r} with an empty data "
                f"folder, or remove the other one: lakemq node remove {node.node_id}"
            )
        if (
            node.node_id == node_id
            and node.storage_id not in ("", storage_id)
            # A node that is fenced may come back with an empty disk; one that is alive has not lost
            # it.
            and node.heartbeats
            and node.state != FENCED
        ):
            raise CompareFailed(
                f"node {node_id!r} is {node.state} with storage {node.storage_id}, not "
                f"{storage_id}: another process runs under this node id"
            )


def find_node(draft: Draft, node_id: str) -> NodeRegistration:
    """Raises NotFound."""
    row = draft.row(node_key(node_id))
    if row is None:
        raise NotFound(f"node {node_id!r} is not registered")
    return decode_node(node_key(node_id), row.value)


def set_node_state(draft: Draft, command: SetNodeState) -> Any:
    """Whether the state changed."""
    node = find_node(draft, command.node_id)
    # The change was decided for an incarnation that has registered again since (KIP-500).
    if node.broker_epoch != command.broker_epoch:
        raise CompareFailed(
            f"node {command.node_id!r} is in broker epoch {node.broker_epoch}, not "
            f"{command.broker_epoch}"
        )
    if node.state == command.state:
        return False
    draft.put_row(node_key(node.node_id), encode_node(replace(node, state=command.state)))
    return True


def retire_node(draft: Draft, command: RetireNode) -> Any:
    """Raises CompareFailed unless that very registration drains."""
    node = find_node(draft, command.node_id)
    if (node.broker_epoch, node.state) != (command.broker_epoch, DRAINING):
        raise CompareFailed(
            f"node {node.node_id!r} is {node.state} in broker epoch {node.broker_epoch}"
        )
    return remove_node(draft, RemoveNode(command.node_id))


def remove_node(draft: Draft, command: RemoveNode) -> Any:
    """Raises InvalidArgument while it holds replicas."""
    node = find_node(draft, command.node_id)
    count = decode_number(draft.get(REPLICA_COUNTS + node.node_id.encode()))
    if count:
        raise InvalidArgument(f"node {node.node_id!r} holds {count} partition replicas")
    draft.delete_row(node_key(node.node_id))
    draft.set(REPLICA_COUNTS + node.node_id.encode(), None)
    return None


# ------------------------------------------------------------ placement
#
# Each topic is spread evenly, over the least loaded nodes first; replicas of one partition go to as
# many racks as there are.


class Candidate(NamedTuple):
    """A node that may take replicas."""

    node_id: str
    rack: str
    """A path such as `eu-1/r2`, or a name."""
    machine: str
    """No two replicas of a partition share one."""


def shared_rack(rack: str, others: Iterable[str]) -> int:
    """How many of the first parts of its path a rack shares with the nearest one of others."""
    parts = rack.split("/")
    return max((_shared_parts(parts, other.split("/")) for other in others), default=0)


def _shared_parts(some: Sequence[str], others: Sequence[str]) -> int:
    for count, (one, other) in enumerate(zip(some, others, strict=False)):
        if one != other:
            return count
    return min(len(some), len(others))


def place(
    candidates: Sequence[Candidate], loads: Mapping[str, int], partitions: int, replication: int
) -> list[tuple[str, ...]]:
    """Replicas of each partition, the preferred leader first.

    `loads`: replicas that a node has already. Fewer replicas than asked for when there are fewer
    machines; none when there is no node.
    """
    # What a node has of this topic counts first: one that is empty would get most of it, and
    # most of the topic's work.
    replicas_of = {node.node_id: (0, loads.get(node.node_id, 0)) for node in candidates}
    leaders_of = dict.fromkeys(replicas_of, 0)
    placed = []
    for _ in range(partitions):
        chosen = _choose(candidates, replicas_of, replication)
        # The first replica is the preferred leader: it is the node that leads the fewest of these.
        chosen.sort(key=lambda node: (leaders_of[node.node_id], node.node_id))
        for node in chosen:
            own, before = replicas_of[node.node_id]
            replicas_of[node.node_id] = (own + 1, before)
        if chosen:
            leaders_of[chosen[0].node_id] += 1
        placed.append(tuple(node.node_id for node in chosen))
    return placed


def _choose(
    candidates: Sequence[Candidate], replicas_of: Mapping[str, tuple[int, int]], count: int
) -> list[Candidate]:
    """The least loaded nodes, each as far from those before as there are any."""
    left = sorted(candidates, key=lambda node: (replicas_of[node.node_id], node.node_id))
    chosen: list[Candidate] = []
    while left and len(chosen) < count:
        racks = {node.rack for node in chosen}
        # The first of the best: `left` is in the order of load.
        best = min(left, key=lambda node: shared_rack(node.rack, racks))
        chosen.append(best)
        left = [node for node in left if node.machine != best.machine]
    return chosen
