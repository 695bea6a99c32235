"""What this node does with its replicas of partitions, as the catalog assigns them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from lakemq.broker_core.api.errors import NotLeader
from lakemq.broker_core.api.replica_ports import ReplicaLog
from lakemq.broker_core.api.types import Acks, Leadership
from lakemq.broker_core.replication.lease import Lease
from lakemq.broker_core.replication.manager import Replication
from lakemq.broker_core.replication.roles import (
    Assignment,
    Decision,
    Follow,
    KeepLeading,
    Lead,
    PartitionRole,
    Wait,
)
from lakemq.broker_core.replication.types import NO_EPOCH, Place

_log: Final = logging.getLogger(__name__)


class Assignments:
    """Carries out what `PartitionRole` decides for partitions that have, or shall have, several
    replicas. Lives on the event loop."""

    def __init__(
        self, node_id: str, replication: Replication, lease: Lease, now_s: Callable[[], float]
    ) -> None:
        """`now_s`: the clock of the lease."""
        self._node_id = node_id
        self._replication = replication
        self._lease = lease
        self._now_s = now_s
        self._roles: dict[Place, PartitionRole] = {}
        self.active = False
        """Whether the registration has been active."""
        self._had_lease = False
        self.on_change: Callable[[], None] = lambda: None
        """Called when `leads` may answer otherwise than before; where a lease ends or begins, up
        to a tick of the replication later."""
        replication.on_given_up = self._gave_up
        replication.on_tick = self._look_at_lease

    # -- this node in the catalog

    def registered(self) -> None:
        """The node has registered: what it led in an earlier registration has ended."""
        self.active = False
        self._lease.end()
        self._roles.clear()
        self._replication.give_up_all()
        self.on_change()

    def activated(self) -> None:
        """The registration is, or was, active in the catalog that is assigned from now on."""
        self.active = True

    # -- partitions

    async def assign(
        self,
        place: Place,
        name: str,
        log: ReplicaLog,
        held: Leadership,
        acks_min: Acks,
        *,
        led_alone: int = NO_EPOCH,
    ) -> None:
        """Do what the catalog says. `held`: its entry, of which an older one changes nothing.
        `name`: for messages. `led_alone`: epoch in which this process has led it as the only
        replica."""
        role = self._roles.get(place)
        if role is None:
            role = self._roles[place] = PartitionRole(self._node_id, led_alone=led_alone)
        decision = role.assigned(_assignment(held), active=self.active, last_epoch=log.last_epoch())
        if decision is None:
            self._replication.row_changed(place)
        elif isinstance(decision, KeepLeading):
            self._replication.view_changed(place, decision.view)
        else:
            await self._replication.drop(place)
            # Not if the node has registered again meanwhile.
            if self._roles.get(place) is role:
                self._begin(decision, role, place, name, log, held.epoch)
        if role.leads:
            self._replication.keep_acks(place, acks_min)
        if decision is not None:
            self.on_change()

    def _begin(
        self,
        decision: Decision,
        role: PartitionRole,
        place: Place,
        name: str,
        log: ReplicaLog,
        epoch: int,
    ) -> None:
        match decision:
            case Lead(view, _):
                self._replication.lead(place, name, log, view)
            case Follow(leader, leader_epoch):
                self._replication.follow(place, name, log, leader, leader_epoch, role)
            case _:
                if isinstance(decision, Wait):
                    _log.info("%s: this replica waits: %s", name, decision.reason)
                log.follow(max(epoch, log.last_epoch()))

    def _gave_up(self, place: Place, epoch: int) -> None:
        role = self._roles.get(place)
        if role is not None:
            role.gave_up(epoch)
        self.on_change()

    def _look_at_lease(self) -> None:
        had, self._had_lease = self._had_lease, self._lease.held(self._now_s())
        if had and not self._had_lease:
            _log.warning("this node may not be the leader of its partitions any more: no heartbeat")
            self._replication.end_waiting()
        if had != self._had_lease:
            self.on_change()

    async def forget(self, place: Place) -> None:
        """The partition is gone, or has one replica now: the log is left to the caller."""
        if self._roles.pop(place, None) is not None:
            await self._replication.drop(place)

    # -- who may append and read

    def leads(self, place: Place) -> bool:
        """Whether this node leads the partition now, and may say so."""
        return self._replication.leading(place) is not None and self._lease.held(self._now_s())

    def lags(self, place: Place) -> dict[str, int]:
        """Other replica -> records that it is behind this node, which leads; without those that
        have not been heard of."""
        leading = self._replication.leading(place)
        if leading is None:
            return {}
        core = leading.core
        lags = {node: core.lag(node) for node in core.view.replicas if node != core.node_id}
        return {node: lag for node, lag in lags.items() if lag is not None}

    def check(self, place: Place, name: str, held: Leadership) -> None:
        """Raises NotLeader, without an address, where `leads` is false: the catalog named this node
        at last, and something newer may hold."""
        leading = self._replication.leading(place)
        # Of another epoch while what the catalog says is being carried out: what is known of the
        # former one may be out of date.
        if leading is None or leading.core.view.epoch != held.epoch:
            reason = "has not begun to lead it, or has ended"
        elif not self._lease.held(self._now_s()):
            reason = "is not sure to lead it: it has lost the MetaService"
        else:
            return
        raise NotLeader(f"{name}: {self._node_id} {reason}", epoch=held.epoch)


def is_shared(held: Leadership, node_id: str) -> bool:
    """Whether other nodes have, or shall have, replicas too."""
    return any(node != node_id for node in (*held.replicas, *held.target))


def _assignment(held: Leadership) -> Assignment:
    return Assignment(
        held.leader,
        held.epoch,
        held.partition_epoch,
        frozenset((*held.replicas, *held.target)),
        frozenset(held.in_sync),
        frozenset(held.eligible),
        held.min_in_sync,
    )
