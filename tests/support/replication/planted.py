"""Bugs to plant into replication: each takes one rule away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import pytest

from lakemq.broker_core.replication import follower, leader, roles
from lakemq.broker_core.replication.types import (
    Ask,
    Diverging,
    FollowerAsk,
)
from lakemq.meta_service.api.types import PartitionDescription
from lakemq.meta_service.catalog import partitions
from lakemq.meta_service.catalog.control_commands import ACTIVE
from tests.support.replication.broker import Broker
from tests.support.replication.catalog import Catalog, Node

Patch = pytest.MonkeyPatch


class Plant(NamedTuple):
    """A rule that is off."""

    broker: type[Broker] = Broker
    catalog: type[Catalog] = Catalog
    patch: Callable[[Patch], None] = lambda patch: None


# ------------------------------------------------------------ leaders and followers


def _offsets_only(patch: Patch) -> None:
    def differs(self: leader.PartitionLeader, said: FollowerAsk) -> Diverging | None:
        end = self._log.log_end_offset
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


class ShipsAtOnce(Broker):
    """Sends what is not fsynced, and goes on after a failed flush."""

    def shipped_end(self) -> int:
        return self.log.log_end_offset

    def read(self, offset: int) -> bytes:
        batches = self.log.batches_between(offset, self.log.log_end_offset)
        return b"".join(each.data for each in batches[: self.rng.randint(1, 4)])


class ShipsAndResigns(ShipsAtOnce):
    """As above, but a leader resigns when a flush fails."""

    def fail_flush(self) -> None:
        leads = self.leader is not None and len(self.disk.batches) > self.disk.synced
        if leads:
            self.log.fail_flush()
            self.give_up()
        else:
            super().fail_flush()


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


# ------------------------------------------------------------ the catalog


class KeepsEpoch(Catalog):
    """A registration takes over the leaderships of the one before."""

    def register(self, name: str, storage_id: str) -> int:
        known = self.nodes.get(name)
        epoch = super().register(name, storage_id)
        lost = self.nodes[name].lost
        if known is not None and not lost:
            self.nodes[name] = Node(known.state, epoch, storage_id)
            self._put(self.partition)
        return epoch

    def may_activate(self, name: str) -> bool:
        return not self.nodes[name].lost


def _lead_again(patch: Patch) -> None:
    """The broker's own guard is off too."""

    def lead(
        self: roles.PartitionRole, row: roles.Assignment, alone: bool, *_: object
    ) -> roles.Decision:
        return roles.Lead(row.view, alone)

    patch.setattr(roles.PartitionRole, "_lead", lead)


class KnowsNoDisks(Catalog):
    """A node with an empty disk keeps its memberships."""

    def register(self, name: str, storage_id: str) -> int:
        epoch = super().register(name, storage_id)
        self.nodes[name] = self.nodes[name]._replace(lost=False)
        return epoch


class JudgesFirst(Catalog):
    """The eligible set is emptied by what was in sync before the election."""

    def _settled(self, partition: PartitionDescription, **how: object) -> PartitionDescription:
        settled = super()._settled(partition, **how)
        alive = [n for n in partition.in_sync if self.states.get(n) == ACTIVE]
        if settled is partition or len(alive) >= partition.min_in_sync:
            return settled
        kept = {*partition.eligible, *partition.in_sync} - set(settled.in_sync)
        eligible = tuple(name for name in partition.replicas if name in kept)
        return replace(settled, eligible=eligible)


class AnyRegistration(Catalog):
    """A member may join whatever process of it the leader heard (before KIP-903)."""

    def _may_join(self, name: str, broker_epoch: int) -> bool:
        node = self.nodes[name]
        return node.state == ACTIVE and not node.lost


class AsBefore(KeepsEpoch):
    """The rules of feature level 3."""

    def register(self, name: str, storage_id: str) -> int:
        epoch = super().register(name, storage_id)
        self.nodes[name] = self.nodes[name]._replace(lost=False)
        return epoch

    def may_activate(self, name: str) -> bool:
        return True

    def _settled(self, partition: PartitionDescription, **how: object) -> PartitionDescription:
        preferred = bool(how.get("preferred"))
        in_sync = partition.in_sync or partition.eligible
        return partitions.settle_below_cluster_level(
            replace(partition, in_sync=in_sync, eligible=()),
            self.states,
            preferred=preferred,
            keeps_leader=True,
        )


PLANTS = {
    "truncation by offsets only": Plant(patch=_offsets_only),
    "high watermark below the minimum": Plant(patch=_no_minimum),
    "ships at once and goes on": Plant(broker=ShipsAtOnce),
    "acks what was fetched": Plant(patch=_fetched_counts),
    "ships at once, epoch kept at restart": Plant(
        broker=ShipsAndResigns, catalog=KeepsEpoch, patch=_lead_again
    ),
    "empty disk keeps memberships": Plant(catalog=KnowsNoDisks),
    "epoch kept at restart": Plant(catalog=KeepsEpoch, patch=_lead_again),
    "additions count when done": Plant(patch=_additions_count_when_done),
    "eligible judged before the election": Plant(catalog=JudgesFirst),
    "leads as an earlier registration": Plant(patch=_lead_again),
    "catalog of level 3": Plant(catalog=AsBefore, patch=_lead_again),
}
