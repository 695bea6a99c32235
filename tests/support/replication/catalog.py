"""The catalog of one partition: the real commands in one order, and all its past."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from lakemq.broker_core.replication.roles import Assignment
from lakemq.broker_core.replication.types import InSyncWish, WishAnswer, WishCode
from lakemq.meta_service.api.types import NodeRegistration, PartitionDescription
from lakemq.meta_service.catalog.command_codec import Command
from lakemq.meta_service.catalog.commands import SetFeatureLevel
from lakemq.meta_service.catalog.control_commands import SetNodeState
from lakemq.meta_service.catalog.moves import StartMoves
from lakemq.meta_service.catalog.nodes import all_nodes
from lakemq.meta_service.catalog.pages.cluster import lost_key
from lakemq.meta_service.catalog.pages.commands import (
    AlterReplicatedTopic,
    ChangeInSyncMany,
    CreateReplicatedTopic,
    ElectUnclean,
    FinishMovesInPages,
    ForgetLost,
    LeaveNode,
    PageTopics,
    RegisterBroker,
    Resign,
    SettlePages,
)
from lakemq.meta_service.catalog.pages.rows import page_ids
from tests.support.meta.catalog_rig import Catalog as Rig

TOPIC = "t"
TOPIC_ID = "ab" * 16
_RAW = bytes.fromhex(TOPIC_ID)
_PAGES = tuple(page_ids(TOPIC_ID, 1))
LEVEL = 4


class Snapshot(NamedTuple):
    """The catalog after a command."""

    partition: PartitionDescription | None
    """None: the topic was not created yet."""
    nodes: dict[str, NodeRegistration]

    @property
    def row(self) -> Assignment | None:
        p = self.partition
        return p and Assignment(
            p.leader,
            p.leader_epoch,
            p.partition_epoch,
            frozenset(p.replicas),
            frozenset(p.in_sync),
            frozenset(p.eligible),
            p.min_in_sync,
        )


class Catalog:
    """Commands come in one order; each that changes something adds a snapshot to `history`."""

    def __init__(self) -> None:
        self._rig = Rig()
        self.changed: Callable[[], None] = lambda: None
        """Called after each change."""
        self.history = [Snapshot(None, {})]
        self._created = False
        self._settled = 0
        self._do(SetFeatureLevel(LEVEL))
        self._do(PageTopics(1000))

    def _do(self, command: Command) -> Any:
        """What the command answered; None where it was refused."""
        result = self._rig.do(command).result
        self._look()
        return None if result.code else result.payload

    def _look(self) -> None:
        draft = self._rig.draft()
        nodes = {node.node_id: node for node in all_nodes(draft)}
        topics = [self._rig.topic(TOPIC)] if self._created else []
        snapshot = Snapshot(topics[0].partitions[0] if topics else None, nodes)
        if snapshot != self.history[-1]:
            self.history.append(snapshot)
            self.changed()

    @property
    def partition(self) -> PartitionDescription:
        partition = self.history[-1].partition
        assert partition is not None
        return partition

    @property
    def nodes(self) -> dict[str, NodeRegistration]:
        return self.history[-1].nodes

    # ------------------------------------------------------------ nodes

    def register(self, name: str, storage_id: str, *, damaged: bool) -> int:
        """The broker epoch; 0: refused, as that node was not missed yet and had another disk.
        `storage_id`: 32 hex digits. `damaged`: it gives its replica up."""
        gone = ((_RAW, 0),) if damaged else ()
        epoch = self._do(
            RegisterBroker(name, {}, "", "1", LEVEL, True, storage_id, (), False, gone)
        )
        return epoch or 0

    def leave(self, name: str, broker_epoch: int) -> None:
        """The process stops in good order."""
        self._do(LeaveNode(name, broker_epoch))

    def has_lost(self, name: str) -> bool:
        """It came with another disk, and is a member still by the one before."""
        return self._rig.value(lost_key(name)) is not None

    def forget_lost(self, name: str) -> None:
        self._do(ForgetLost(name))

    def set_state(self, name: str, state: str) -> None:
        """Refused where the node may not come in yet."""
        self._do(SetNodeState(name, self.nodes[name].broker_epoch, state))

    # ------------------------------------------------------------ the partition

    def create(self, replication: int, min_in_sync: int) -> None:
        self._created = True
        self._do(CreateReplicatedTopic(TOPIC, TOPIC_ID, 1, replication, {}, (), min_in_sync))

    def settle(self, *, preferred: bool = False) -> None:
        """Nothing, where nothing has changed since."""
        if preferred or self._settled != len(self.history):
            self._do(SettlePages(_PAGES, preferred))
            self._settled = len(self.history)

    def change_in_sync(
        self, leader: str, broker_epoch: int, wish: InSyncWish, others: int = 0
    ) -> WishAnswer:
        """`others`: wishes for partitions that are gone, before it in the same command."""
        change = (_RAW, 0, wish.epoch, wish.partition_epoch, tuple(wish.members.items()))
        gone = [(bytes(16), *change[1:])] * others
        *_, (code, partition_epoch, in_sync, _, leader_epoch) = self._do(
            ChangeInSyncMany(leader, broker_epoch, (*gone, change))
        )
        return WishAnswer(WishCode(code), leader_epoch, partition_epoch, frozenset(in_sync))

    def resign(self, name: str, epoch: int) -> None:
        self._do(Resign(name, self.nodes[name].broker_epoch, ((_RAW, 0, epoch),)))

    def elect_unclean(self, name: str) -> None:
        """An operator's word."""
        self._do(ElectUnclean(TOPIC, 0, self.partition.partition_epoch, name))

    def set_min(self, min_in_sync: int) -> None:
        self._do(AlterReplicatedTopic(TOPIC, None, None, (), None, min_in_sync))

    def start_move(self, target: tuple[str, ...]) -> None:
        epoch = self.partition.partition_epoch
        self._do(StartMoves(((TOPIC, TOPIC_ID, 0, epoch, target),)))

    def finish_moves(self) -> None:
        if self.partition.target:
            self._do(FinishMovesInPages(_PAGES))
