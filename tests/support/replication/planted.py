"""Bugs to plant into replication: each takes one rule away."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from lakemq.broker_core.api.types import Offset
from lakemq.broker_core.replication import follower, leader, roles
from lakemq.broker_core.replication.types import (
    Ask,
    Diverging,
    FollowerAsk,
    KnownRow,
)
from lakemq.meta_service.api.types import NodeRegistration, PartitionDescription
from lakemq.meta_service.catalog.commands import RegisterNode
from lakemq.meta_service.catalog.control_commands import ACTIVE, DRAINING
from lakemq.meta_service.catalog.draft import Draft
from lakemq.meta_service.catalog.nodes import encode_node, find_node, node_key
from lakemq.meta_service.catalog.pages import changes, cluster, registration
from lakemq.meta_service.catalog.partitions import settle_below_cluster_level
from lakemq.meta_service.control import dead_processes
from lakemq.meta_service.control.dead_processes import DeadProcesses
from tests.support import replica_log
from tests.support.replication.broker import Broker

Patch = pytest.MonkeyPatch


class Plant(NamedTuple):
    """A rule that is off."""

    broker: type[Broker] = Broker
    patch: Callable[[Patch], None] = lambda patch: None


# ------------------------------------------------------------ leaders and followers


def _offsets_only(patch: Patch) -> None:
    def differs(
        self: leader.PartitionLeader, said: FollowerAsk
    ) -> Diverging | leader.Restart | None:
        start, end = self._log.log_start_offset, self._log.log_end_offset
        if said.ask.offset < start:
            return leader.Restart(start)
        return Diverging(2**60, end) if said.ask.offset > end else None

    patch.setattr(leader.PartitionLeader, "_differs", differs)


def _no_minimum(patch: Patch) -> None:
    patch.setattr(leader.PartitionLeader, "_has_minimum", lambda self: True)


def _fetched_counts(patch: Patch) -> None:
    asks = follower.PartitionFollower.ask

    def ask(self: follower.PartitionFollower) -> Ask:
        said = asks(self)
        return said._replace(durable=said.offset)

    patch.setattr(follower.PartitionFollower, "ask", ask)


def _additions_count_when_done(patch: Patch) -> None:
    patch.setattr(
        leader.PartitionLeader,
        "_maximal_in_sync",
        lambda self: self.view.in_sync | {self.node_id},
    )


class _Believes(leader.PartitionLeader):
    def _is_undecided(self, offset: Offset) -> bool:
        return False


class GoesOn(Broker):
    """A leader whose flush failed gives offsets again that followers may have."""

    def flush_of_leader_failed(self) -> None:
        self._told_flushed()


class ComparesAtOnce(GoesOn):
    """Compares, and sends, what it got as a follower and what its disk may refuse."""

    leader_type = _Believes

    def shipped_end(self) -> int:
        return self.log.log_end_offset


class ReadsAtOnce(Broker):
    """Answers readers before it knows what earlier leaders have committed."""

    def serves(self, epoch: int) -> bool:
        leader = self.leader
        return self.up and not self.paused and leader is not None and leader.view.epoch == epoch


class KeepsLease(Broker):
    """Goes on leading as before when its heartbeat stream breaks."""

    def stream_broke(self) -> None:
        lease = self.lease
        until_s = self.world.now_s + lease.left_s(self.world.now_s)
        super().stream_broke()
        lease._until_s = until_s


def _refused_is_dead(patch: Patch) -> None:
    """Whose address refuses is fenced at once, with its heartbeat stream open."""

    def is_dead(self: DeadProcesses, node_id: str, broker_epoch: int, now_s: float) -> bool:
        return (node_id, broker_epoch) in self._refused_s

    patch.setattr(DeadProcesses, "is_dead", is_dead)


def _fenced_as_it_breaks(patch: Patch) -> None:
    """No time is left to a process that lives."""
    patch.setattr(dead_processes, "REOPEN_S", 0.0)


def forget_resigning(patch: Patch) -> None:
    """A later word of the catalog in the same epoch lets a leader go on that had given up."""

    def gave_up(self: roles.PartitionRole, epoch: int) -> None:
        self._now = roles.Wait("")

    def lead(
        self: roles.PartitionRole, row: roles.Assignment, alone: bool, active: bool, last_epoch: int
    ) -> roles.Decision:
        return roles.Lead(row.view, alone) if active else roles.Wait("")

    patch.setattr(roles.PartitionRole, "gave_up", gave_up)
    patch.setattr(roles.PartitionRole, "_lead", lead)


def _deleted_is_served(patch: Patch) -> None:
    """A leader goes on from its start for a follower whose log ends below it."""
    differs = leader.PartitionLeader._differs

    def any_start(
        self: leader.PartitionLeader, said: FollowerAsk
    ) -> Diverging | leader.Restart | None:
        below = said.ask.offset < self._log.log_start_offset
        return None if below else differs(self, said)

    patch.setattr(leader.PartitionLeader, "_differs", any_start)
    patch.setattr(Broker, "is_deleted", lambda self, offset: False)


def _rolls_alone(patch: Patch) -> None:
    patch.setattr(leader.PartitionLeader, "_roll_at", lambda self, base: 0)


def _keeps_empty_segments(patch: Patch) -> None:
    patch.setattr(follower.PartitionFollower, "_ends_early", lambda self, send: False)


def _copies_freely(patch: Patch) -> None:
    patch.setattr(leader.PartitionLeader, "caught_up", lambda self, node: True)


class CompactsAhead(Broker):
    """What is not committed replaces what is."""

    def compaction_end(self) -> int:
        return self.log.log_end_offset

    def _tick(self) -> None:
        super()._tick()
        self.compact()


class NotCounted(NamedTuple):
    """A row that does not count on the replica."""

    role: roles.PartitionRole
    counts: bool = False

    @property
    def partition_epoch(self) -> int:
        return self.role.partition_epoch


class BeginsAtOnce(Broker):
    """Drops what it has though it counts: its log can't be cut."""

    def row(self) -> KnownRow:
        return NotCounted(self.role)

    def _check_loss(self) -> None:
        pass


def _sums_unchecked(patch: Patch) -> None:
    patch.setattr(replica_log, "check_body", lambda header, body: None)


# ------------------------------------------------------------ the catalog


class HidesDamage(Broker):
    """Registers as if its log were whole."""

    def start(self) -> None:
        self.disk.damaged = False
        super().start()


def _unclean_always(patch: Patch) -> None:
    patch.setattr(changes, "is_unclean", lambda config: True)


def _moves_end_early(patch: Patch) -> None:
    """When one replica of the target is in sync."""
    ends = changes.end_move

    def early(partition: PartitionDescription, states: Mapping[str, str]) -> PartitionDescription:
        if not set(partition.target) & set(partition.in_sync):
            return partition
        whole = replace(partition, in_sync=(*partition.in_sync, *partition.target))
        moved = ends(whole, states)
        return partition if moved is whole else moved

    patch.setattr(changes, "end_move", early)


def _drained_lead(patch: Patch) -> None:
    """A leader that drains keeps its leadership."""
    settle = cluster.settle

    def keeps(
        partition: PartitionDescription, states: Mapping[str, str], **how: Any
    ) -> PartitionDescription:
        as_active = {n: ACTIVE if state == DRAINING else state for n, state in states.items()}
        return settle(partition, as_active, **how)

    patch.setattr(cluster, "settle", keeps)


def _epoch_kept(patch: Patch) -> None:
    """A registration takes over the leaderships of the one before, and so does the broker."""
    register = registration._register

    def keeps(draft: Draft, command: RegisterNode, before: NodeRegistration | None) -> int:
        epoch = register(draft, command, before)
        if before is not None:
            node = find_node(draft, command.node_id)
            node = replace(node, state=before.state, admitted=before.admitted)
            draft.put_row(node_key(node.node_id), encode_node(node))
        return epoch

    patch.setattr(registration, "_register", keeps)
    patch.setattr(registration, "_check_admission", lambda draft, node: None)
    _lead_again(patch)


def _lead_again(patch: Patch) -> None:
    """The broker's own guard is off too."""

    def lead(
        self: roles.PartitionRole, row: roles.Assignment, alone: bool, *_: object
    ) -> roles.Decision:
        return roles.Lead(row.view, alone)

    patch.setattr(roles.PartitionRole, "_lead", lead)


def _disks_unknown(patch: Patch) -> None:
    """A node with an empty disk keeps its memberships."""
    patch.setattr(registration, "_note_lost", lambda draft, node_id, lost: None)


def judged_first(patch: Patch) -> None:
    """The eligible set is emptied by what was in sync before the election."""
    settle = cluster.settle

    def early(
        partition: PartitionDescription, states: Mapping[str, str], **how: Any
    ) -> PartitionDescription:
        settled = settle(partition, states, **how)
        alive = [n for n in partition.in_sync if states.get(n) == ACTIVE]
        if settled is partition or len(alive) >= partition.min_in_sync:
            return settled
        kept = {*partition.eligible, *partition.in_sync} - set(settled.in_sync)
        kept -= set(how.get("lost", ()))
        eligible = tuple(name for name in partition.replicas if name in kept)
        return replace(settled, eligible=eligible)

    patch.setattr(cluster, "settle", early)


def any_registration(patch: Patch) -> None:
    """A member may join whatever process of it the leader heard (before KIP-903)."""
    may_join = cluster.Cluster.may_join

    def joins(self: cluster.Cluster, node_id: str, broker_epoch: int) -> bool:
        return may_join(self, node_id, self.nodes[node_id].broker_epoch)

    patch.setattr(cluster.Cluster, "may_join", joins)


def _as_before(patch: Patch) -> None:
    """The catalog's rules of feature level 3."""

    def settle(
        partition: PartitionDescription, states: Mapping[str, str], **how: Any
    ) -> PartitionDescription:
        in_sync = partition.in_sync or partition.eligible
        return settle_below_cluster_level(
            replace(partition, in_sync=in_sync, eligible=()),
            states,
            preferred=how.get("preferred", False),
            keeps_leader=True,
        )

    patch.setattr(cluster, "settle", settle)
    _disks_unknown(patch)
    _epoch_kept(patch)


PLANTS = {
    "truncation by offsets only": Plant(patch=_offsets_only),
    "high watermark below the minimum": Plant(patch=_no_minimum),
    "goes on after a failed flush": Plant(broker=GoesOn),
    "compares what may be lost": Plant(broker=ComparesAtOnce),
    "acks what was fetched": Plant(patch=_fetched_counts),
    "reads before it is ready": Plant(broker=ReadsAtOnce),
    "empty disk keeps memberships": Plant(patch=_disks_unknown),
    "epoch kept at restart": Plant(patch=_epoch_kept),
    "additions count when done": Plant(patch=_additions_count_when_done),
    "leads as an earlier registration": Plant(patch=_lead_again),
    "lease kept when the stream breaks": Plant(broker=KeepsLease),
    "dead because it refuses": Plant(patch=_refused_is_dead),
    "dead as soon as the stream breaks": Plant(patch=_fenced_as_it_breaks),
    "catalog of level 3": Plant(patch=_as_before),
    "serves what was deleted": Plant(patch=_deleted_is_served),
    "segments roll anywhere": Plant(patch=_rolls_alone),
    "writes to a segment of its own": Plant(patch=_keeps_empty_segments),
    "copies without a throttle": Plant(patch=_copies_freely),
    "compacts what is not committed": Plant(broker=CompactsAhead),
    "begins again while it counts": Plant(broker=BeginsAtOnce),
    "takes batches with flipped bits": Plant(patch=_sums_unchecked),
    "hides a damaged log": Plant(broker=HidesDamage),
    "unclean elections without a word": Plant(patch=_unclean_always),
    "moves end early": Plant(patch=_moves_end_early),
    "a drained node leads on": Plant(patch=_drained_lead),
}
