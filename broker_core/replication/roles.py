"""What a node does with its replica of a partition when the catalog says something of it.

Pure. A node leads an epoch only if the catalog gave it while this process was registered and
active: every registration ends the leaderships of the one before, so what an older row says of this
node was meant for another process, whose log may have been longer.
"""

from __future__ import annotations

from typing import NamedTuple

from lakemq.broker_core.replication.types import NO_EPOCH, View


class Assignment(NamedTuple):
    """The catalog's row of a partition."""

    leader: str | None
    epoch: int
    """Leader epoch."""
    partition_epoch: int
    replicas: frozenset[str]
    """With those of a move's target."""
    in_sync: frozenset[str]
    eligible: frozenset[str]
    min_in_sync: int

    @property
    def view(self) -> View:
        """For the leader."""
        return View(self.epoch, self.partition_epoch, self.in_sync, self.replicas, self.min_in_sync)


class Lead(NamedTuple):
    """Stop what is under way; `log.lead(view.epoch, alone=alone)`, and unless alone a
    `PartitionLeader`."""

    view: View
    alone: bool
    """This is the only replica: the high watermark follows the disk."""


class KeepLeading(NamedTuple):
    """Go on leading: `PartitionLeader.view_changed(view)`."""

    view: View


class Follow(NamedTuple):
    """Stop what is under way; `log.follow(epoch)`, and a `PartitionFollower` of that leader."""

    leader: str
    epoch: int


class Wait(NamedTuple):
    """Stop what is under way: neither lead nor follow until the catalog says more. Appends that
    wait fail with NotLeader, their outcome open."""

    reason: str


class Drop(NamedTuple):
    """Stop what is under way and delete the replica: the catalog names this node no more."""


Decision = Lead | KeepLeading | Follow | Wait | Drop


class PartitionRole:
    """The role of one node in one partition of one topic id, in one life of its process and one
    registration."""

    def __init__(self, node_id: str, *, led_alone: int = NO_EPOCH) -> None:
        """`led_alone`: epoch in which this process has led the partition as its only replica; it
        goes on leading in that epoch when others are added."""
        self._node_id = node_id
        self._led_alone = led_alone
        self._seen = (NO_EPOCH, NO_EPOCH)
        self._over = NO_EPOCH
        """This node takes no part in epochs up to this one any more."""
        self._now: Decision = Wait("the catalog has not said anything yet")
        self.counts = True
        """Whether the catalog counts on this replica, in sync or eligible; True until it says no.
        In one leader epoch, one that does not count can only become one that does by its own
        asks."""

    @property
    def leads(self) -> bool:
        """Whether the last decision was to lead, and it was not given up since."""
        return isinstance(self._now, Lead)

    @property
    def partition_epoch(self) -> int:
        """Of the newest row that was handed in: no older one changes anything."""
        return max(self._seen[1], 0)

    def assigned(
        self, row: Assignment, *, active: bool, last_epoch: int = NO_EPOCH
    ) -> Decision | None:
        """What to do now; None: nothing but what is done already.

        `active`: this registration was active or draining in the catalog that holds the row, or
        before; when that becomes true, every row is to be handed in
        again. `last_epoch`: of the log's last batch. Rows may come late or twice.
        """
        if (row.epoch, row.partition_epoch) < self._seen:
            return None
        self._seen = row.epoch, row.partition_epoch
        self.counts = self._node_id in row.in_sync | row.eligible
        decision = self._decide(row, active, last_epoch)
        before, self._now = self._now, decision
        if isinstance(decision, Lead) and isinstance(before, Lead):
            return self._go_on(before, decision)
        return None if decision == before else decision

    def _go_on(self, before: Lead, now: Lead) -> Decision | None:
        if before == now:
            return None
        if (before.view.epoch, before.alone) != (now.view.epoch, now.alone) or now.alone:
            return now
        return KeepLeading(now.view)

    def _decide(self, row: Assignment, active: bool, last_epoch: int) -> Decision:
        me = self._node_id
        if me not in row.replicas:
            # A row of before the registration may be older than what the disk holds: this node was
            # named since, and counted.
            return Drop() if active else Wait("the catalog may have named this node since")
        alone = row.replicas == {me}
        if row.epoch < last_epoch:
            return Wait(f"the log is of epoch {last_epoch}, the catalog's row of {row.epoch}")
        if row.epoch <= self._over:
            return Wait(f"epoch {row.epoch} is over")
        if row.leader == me or (row.leader is None and alone and me in row.in_sync | row.eligible):
            return self._lead(row, alone, active, last_epoch)
        if row.leader is None:
            return Wait("no replica can lead")
        return Follow(row.leader, row.epoch)

    def _lead(self, row: Assignment, alone: bool, active: bool, last_epoch: int) -> Decision:
        if not alone and not active:
            return Wait(f"epoch {row.epoch} was given to an earlier registration")
        leads = isinstance(self._now, Lead) and self._now.view.epoch == row.epoch
        leads = leads or row.epoch == self._led_alone
        if not alone and not leads and row.epoch == last_epoch:
            return Wait(f"epoch {row.epoch} was led by an earlier process")
        return Lead(row.view, alone)

    def gave_up(self, epoch: int) -> None:
        """This node has stopped to lead or follow in `epoch`, for good: it resigned, or heard that
        the epoch is over. The caller has carried out what `Wait` says."""
        self._over = max(self._over, epoch)
        self._now = Wait(f"epoch {epoch} is over")
