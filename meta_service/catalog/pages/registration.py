"""Nodes from level 4 on: every registration ends the leaderships of the one before it.

A process may have been started again before it was missed, with a log that ends earlier than the
one it led with. So a registered node is fenced, and becomes active only when it leads nothing and
nothing rests on a disk that it has lost: its leaderships come back in new epochs (KAFKA-18106).
Registering is one row, however many partitions there are; the controller takes them away in pages.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lakemq.meta_service.api.errors import CompareFailed
from lakemq.meta_service.api.types import CLUSTER_LEVEL, NodeRegistration
from lakemq.meta_service.catalog import nodes
from lakemq.meta_service.catalog.commands import RegisterNode, RegisterStorage
from lakemq.meta_service.catalog.control_commands import (
    FENCED,
    RemoveNode,
    RetireNode,
    SetNodeState,
)
from lakemq.meta_service.catalog.draft import Draft
from lakemq.meta_service.catalog.pages.cluster import (
    NOTHING_LOST,
    Lost,
    decode_lost,
    encode_lost,
    lost_key,
)
from lakemq.meta_service.catalog.pages.commands import ForgetLost, LeaveNode, RegisterBroker
from lakemq.meta_service.catalog.pages.rows import PageEdits, count_of
from lakemq.meta_service.catalog.tables import LEADER_COUNTS, MEMBER_COUNTS
from lakemq.meta_service.catalog.topics import adopt_orphans, is_paging_done


def register(draft: Draft, command: RegisterNode) -> Any:
    """The node's broker epoch: the revision of this registration.

    Raises AlreadyExists, CompareFailed where two processes would hold the same name or disk.
    """
    before = _find(draft, command.node_id)
    if draft.state.feature_level < CLUSTER_LEVEL:
        epoch = nodes.register_node(draft, command)
    else:
        epoch = _register(draft, command, before)
    if before is None:
        adopt_orphans(draft)
    return epoch


def _register(draft: Draft, command: RegisterNode, before: NodeRegistration | None) -> int:
    storage_id, clean = "", False
    roles: tuple[str, ...] = ()
    disowned: tuple[tuple[bytes, int], ...] = ()
    if isinstance(command, RegisterStorage):
        storage_id = command.storage_id
    elif isinstance(command, RegisterBroker):
        storage_id, roles, clean = command.storage_id, command.roles, command.clean
        disowned = command.disowned
    if storage_id:
        nodes.check_storage(draft, command.node_id, storage_id)
    # Nodes that named no storage before are taken to have the disk still that they had.
    everything = before is not None and before.storage_id not in ("", storage_id)
    if before is not None and (everything or disowned):
        _note_lost(draft, command.node_id, Lost(everything, frozenset(disowned)))
    node = NodeRegistration(
        command.node_id,
        command.addresses,
        command.rack,
        command.version,
        command.feature_level,
        draft.revision,
        FENCED,
        command.heartbeats,
        storage_id,
        roles,
        clean,
        admitted=False,
    )
    draft.put_row(nodes.node_key(node.node_id), nodes.encode_node(node))
    return draft.revision


def _find(draft: Draft, node_id: str) -> NodeRegistration | None:
    row = draft.row(nodes.node_key(node_id))
    return nodes.decode_node(nodes.node_key(node_id), row.value) if row is not None else None


def _note_lost(draft: Draft, node_id: str, lost: Lost) -> None:
    """Beside what an earlier registration lost, if that has not been taken away yet."""
    old = lost_of(draft, node_id)
    everything = old.everything or lost.everything
    replicas = frozenset() if everything else old.replicas | lost.replicas
    draft.put_row(lost_key(node_id), encode_lost(Lost(everything, replicas)))


def lost_of(draft: Draft, node_id: str) -> Lost:
    """What the node has lost and is still a member of."""
    row = draft.row(lost_key(node_id))
    return decode_lost(row.value) if row is not None else NOTHING_LOST


# ------------------------------------------------------------ states


def set_node_state(draft: Draft, command: SetNodeState) -> Any:
    """Whether the state changed. Raises CompareFailed where the node may not come in (yet)."""
    if draft.state.feature_level < CLUSTER_LEVEL:
        return nodes.set_node_state(draft, command)
    node = nodes.find_node(draft, command.node_id)
    _check_epoch(node, command.broker_epoch)
    if command.state == node.state:
        return False
    if command.state != FENCED:
        _check_admission(draft, node)
        node = replace(node, admitted=True)
    changed = replace(node, state=command.state)
    draft.put_row(nodes.node_key(node.node_id), nodes.encode_node(changed))
    return True


def _check_epoch(node: NodeRegistration, broker_epoch: int) -> None:
    # The change was decided for an incarnation that has registered again since (KIP-500).
    if node.broker_epoch != broker_epoch:
        raise CompareFailed(
            f"node {node.node_id!r} is in broker epoch {node.broker_epoch}, not {broker_epoch}"
        )


def _check_admission(draft: Draft, node: NodeRegistration) -> None:
    if node.leaving:
        raise CompareFailed(f"node {node.node_id!r} is stopping: it must register again")
    if node.admitted:
        return  # it was not heard for a while, and goes on with what it has
    leads = count_of(draft, LEADER_COUNTS, node.node_id)
    if leads:
        raise CompareFailed(
            f"node {node.node_id!r} still leads {leads} partitions of its earlier registration"
        )
    if draft.row(lost_key(node.node_id)) is not None:
        raise CompareFailed(f"node {node.node_id!r} is still a member where its disk was lost")
    if not is_paging_done(draft):
        raise CompareFailed("partitions of an earlier feature level are not counted yet")


def leave_node(draft: Draft, command: LeaveNode) -> Any:
    """None. Raises CompareFailed when it has registered again."""
    node = nodes.find_node(draft, command.node_id)
    _check_epoch(node, command.broker_epoch)
    leaving = replace(node, state=FENCED, leaving=True)
    if leaving != node:
        draft.put_row(nodes.node_key(node.node_id), nodes.encode_node(leaving))
    return None


def forget_lost(draft: Draft, command: ForgetLost) -> Any:
    """Whether there was something. Raises CompareFailed while anything rests on it."""
    lost, edits = lost_of(draft, command.node_id), PageEdits(draft)
    if lost.everything:
        left = count_of(draft, MEMBER_COUNTS, command.node_id)
    else:
        found = (edits.find(topic.hex(), number) for topic, number in sorted(lost.replicas))
        left = sum(
            1 for p in found if p is not None and command.node_id in (*p.in_sync, *p.eligible)
        )
    if left:
        raise CompareFailed(f"node {command.node_id!r} is still a member of {left} partitions")
    return draft.delete_row(lost_key(command.node_id))


# ------------------------------------------------------------ the end of a node


def retire_node(draft: Draft, command: RetireNode) -> Any:
    """Raises CompareFailed unless that very registration drains."""
    result = nodes.retire_node(draft, command)
    draft.delete_row(lost_key(command.node_id))
    return result


def remove_node(draft: Draft, command: RemoveNode) -> Any:
    """Raises NotFound, InvalidArgument while it holds replicas."""
    result = nodes.remove_node(draft, command)
    draft.delete_row(lost_key(command.node_id))
    return result
