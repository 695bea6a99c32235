"""What must hold after every event of a simulated partition: I1 to I9 of the cluster's design."""

from __future__ import annotations

from collections.abc import Iterable

from lakemq.broker_core.api.records.batch import HEADER_BYTES
from lakemq.meta_service.api.types import PartitionDescription
from tests.support.replica_log import Disk, SimulatedLog


class Broken(AssertionError):
    """An invariant does not hold; the message begins with its number."""


class Invariants:
    """The truth about one partition, as clients could have seen it."""

    def __init__(self) -> None:
        self.acked: dict[int, bytes] = {}
        """Base offset -> body of a batch that a producer was told is stored for good."""
        self.committed: dict[int, bytes] = {}
        """Base offset -> batch below some high watermark: readers may have had it."""
        self.committed_end = 0
        self._sequences: dict[tuple[int, int], int] = {}
        self._appended: dict[tuple[int, int], bytes] = {}
        self._leaders: dict[int, tuple[str, int]] = {}

    # ------------------------------------------------------------ what clients learn

    def was_acked(self, body: bytes, base: int) -> None:
        found = self.acked.setdefault(base, body)
        if found != body:
            raise Broken(f"I9: offset {base} was acknowledged for two batches")
        if base not in self.committed or self.committed[base][HEADER_BYTES:] != body:
            raise Broken(f"I6: offset {base} was acknowledged and not committed")

    def was_committed(self, name: str, log: SimulatedLog, before: int) -> None:
        """The high watermark of a replica has moved from `before`."""
        for stored in log.batches_between(before, log.high_watermark):
            base = stored.header.base_offset
            found = self.committed.setdefault(base, stored.data)
            if found != stored.data:
                raise Broken(f"I2, I3: another batch at {base} of {name} than readers had")
            key = stored.header.producer_id, stored.header.base_sequence
            if self._sequences.setdefault(key, base) != base:
                raise Broken(f"I9: batch {key} lies at {self._sequences[key]} and {base}")
        if log.high_watermark > log.durable_end:
            raise Broken(f"I6: {name} has committed what it has not fsynced")
        self.committed_end = max(self.committed_end, log.high_watermark)

    # ------------------------------------------------------------ leaders

    def leads(
        self, name: str, process: int, epoch: int, log: SimulatedLog, *, current: bool
    ) -> None:
        """A node begins to lead. `current`: it is the newest epoch, as the catalog knows."""
        if self._leaders.setdefault(epoch, (name, process)) != (name, process):
            raise Broken(f"I4: {name} leads epoch {epoch}, as {self._leaders[epoch]} did")
        if current:
            self._has_all(f"I1: leader {name} of epoch {epoch}", log.disk)

    def was_shipped(self, epoch: int, log: SimulatedLog, base: int, batches: bytes) -> None:
        """A leader sends these: its offsets of its epoch are taken for good."""
        for stored in log.batches_between(base, log.log_end_offset):
            if stored.data not in batches:
                break
            if stored.header.leader_epoch == epoch:
                key = epoch, stored.header.base_offset
                if self._appended.setdefault(key, stored.data) != stored.data:
                    raise Broken(f"I4: offset {key[1]} was given twice in epoch {epoch}")

    def watermark_is_covered(
        self, name: str, watermark: int, members: Iterable[tuple[str, Disk]]
    ) -> None:
        """I6: `members` are those whose disks must have all below `watermark`."""
        for member, disk in members:
            if disk.durable_end < watermark:
                raise Broken(
                    f"I6: {name} has committed to {watermark}, {member} has {disk.durable_end}"
                )

    # ------------------------------------------------------------ the catalog

    def catalog_changed(self, row: PartitionDescription, disks: dict[str, Disk]) -> None:
        """`disks`: of the nodes whose disk is the one that they are registered with."""
        for name in (*row.in_sync, *row.eligible):
            if name in disks:
                self._has_all(f"I7: {name}, in sync or eligible,", disks[name])

    def _has_all(self, who: str, disk: Disk) -> None:
        there = {stored.header.base_offset: stored.data for stored in disk.batches[: disk.synced]}
        for base, data in self.committed.items():
            if there.get(base) != data and base >= disk.start:
                what = "lacks" if base not in there else "has another batch than"
                raise Broken(f"{who} {what} the committed one at {base}")

    # ------------------------------------------------------------ logs

    def log_changed(self, name: str, log: SimulatedLog) -> None:
        """I5 and I8, after batches were taken or cut."""
        epochs = [epoch for epoch, _ in log.epochs]
        if epochs != sorted(set(epochs)):
            raise Broken(f"I5: epochs of {name}: {epochs}")
        if log.log_end_offset < log.high_watermark:
            raise Broken(f"I8: {name} was cut to {log.log_end_offset} below its high watermark")

    def all_alike(self, disks: dict[str, Disk]) -> None:
        """At the end: the same batches everywhere, every acknowledged one among them, once."""
        first, *others = disks.values()
        data = [stored.data for stored in first.batches]
        for other in others:
            if [stored.data for stored in other.batches] != data:
                raise Broken("I2: replicas differ at the end")
        bodies = {stored.header.base_offset: stored.data[HEADER_BYTES:] for stored in first.batches}
        for base, body in self.acked.items():
            if bodies.get(base) != body:
                raise Broken(f"I1: the acknowledged batch at {base} is gone at the end")
        keys = [(each.header.producer_id, each.header.base_sequence) for each in first.batches]
        if len(set(keys)) < len(keys):
            raise Broken("I9: a batch is stored twice at the end")
