"""The catalog of one partition, as the controller and leaders change it, with all its past."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from lakemq.broker_core.replication.roles import Assignment
from lakemq.broker_core.replication.types import InSyncWish, WishAnswer, WishCode
from lakemq.meta_service.api.types import PartitionDescription
from lakemq.meta_service.catalog import partitions
from lakemq.meta_service.catalog.control_commands import ACTIVE, FENCED
from lakemq.meta_service.catalog.moves import begin_move, end_move


class Node(NamedTuple):
    """A registration."""

    state: str
    broker_epoch: int
    storage_id: str
    lost: bool = False
    """It came with another disk, and its memberships were not taken away yet."""


class Snapshot(NamedTuple):
    """The catalog at a revision."""

    partition: PartitionDescription
    nodes: dict[str, Node]

    @property
    def row(self) -> Assignment:
        p = self.partition
        return Assignment(
            p.leader,
            p.leader_epoch,
            p.partition_epoch,
            frozenset(p.replicas),
            frozenset(p.in_sync),
            frozenset(p.eligible),
            p.min_in_sync,
        )


class Catalog:
    """Changes come in one order; each adds a snapshot to `history`."""

    def __init__(self, replicas: tuple[str, ...], nodes: tuple[str, ...], min_in_sync: int) -> None:
        self.partition = PartitionDescription(
            0, None, 0, 0, replicas, (), eligible=replicas, min_in_sync=min_in_sync
        )
        self.nodes: dict[str, Node] = {}
        self.history = [Snapshot(self.partition, {})]
        self.changed: Callable[[], None] = lambda: None
        """Called after each change."""

    def _put(self, partition: PartitionDescription) -> None:
        self.partition = partition
        self.history.append(Snapshot(partition, dict(self.nodes)))
        self.changed()

    @property
    def states(self) -> dict[str, str]:
        return {name: node.state for name, node in self.nodes.items()}

    def _settled(self, partition: PartitionDescription, **how: object) -> PartitionDescription:
        return partitions.settle(partition, self.states, **how)  # type: ignore[arg-type]

    # ------------------------------------------------------------ nodes

    def register(self, name: str, storage_id: str) -> int:
        """The broker epoch."""
        known = self.nodes.get(name)
        lost = known is not None and (known.lost or known.storage_id != storage_id)
        epoch = len(self.history) + 1
        self.nodes[name] = Node(FENCED, epoch, storage_id, lost)
        self._put(self.partition)
        return epoch

    def take_away(self, name: str) -> None:
        """The controller ends what a registration took over from the one before."""
        node = self.nodes[name]
        lost = (name,) if node.lost else ()
        self.nodes[name] = node._replace(lost=False)
        self._put(self._settled(self.partition, lost=lost))

    def may_activate(self, name: str) -> bool:
        """The gate: what an earlier registration led, or had on another disk, is gone."""
        return self.partition.leader != name and not self.nodes[name].lost

    def set_state(self, name: str, state: str) -> None:
        self.nodes[name] = self.nodes[name]._replace(state=state)
        self._put(self._settled(self.partition))

    # ------------------------------------------------------------ the partition

    def change_in_sync(self, leader: str, wish: InSyncWish) -> WishAnswer:
        old = self.partition
        if (old.leader, old.leader_epoch, old.partition_epoch) != (
            leader,
            wish.epoch,
            wish.partition_epoch,
        ):
            return self._answer(WishCode.STALE)
        for name in wish.members.keys() - set(old.in_sync):
            if not self._may_join(name, wish.members[name]):
                return self._answer(WishCode.INELIGIBLE)
        in_sync = tuple(name for name in old.replicas if name in wish.members)
        left = set(old.in_sync) - set(in_sync)
        eligible = set(old.eligible) - set(in_sync)
        if len(in_sync) < old.min_in_sync:
            eligible |= left
        else:
            eligible = set()
        self._put(
            replace(
                old,
                in_sync=in_sync,
                eligible=tuple(name for name in old.replicas if name in eligible),
                partition_epoch=old.partition_epoch + 1,
            )
        )
        return self._answer(WishCode.DONE)

    def _may_join(self, name: str, broker_epoch: int) -> bool:
        node = self.nodes.get(name)
        if node is None or name not in self.partition.replicas or node.lost:
            return False
        return node.state == ACTIVE and node.broker_epoch == broker_epoch

    def _answer(self, code: WishCode) -> WishAnswer:
        p = self.partition
        return WishAnswer(code, p.leader_epoch, p.partition_epoch, frozenset(p.in_sync))

    def resign(self, name: str, epoch: int) -> None:
        if (self.partition.leader, self.partition.leader_epoch) == (name, epoch):
            self._put(self._settled(self.partition, resigned=name))

    def set_min(self, min_in_sync: int) -> None:
        old = self.partition
        changed = replace(old, min_in_sync=min_in_sync, partition_epoch=old.partition_epoch + 1)
        self._put(self._settled(changed))

    def start_move(self, target: tuple[str, ...]) -> None:
        self._put(begin_move(self.partition, target))

    def finish_move(self) -> None:
        done = end_move(self.partition, self.states)
        if done is not self.partition:
            self._put(done)

    def elect_preferred(self) -> None:
        settled = self._settled(self.partition, preferred=True)
        if settled is not self.partition:
            self._put(settled)
