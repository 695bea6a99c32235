"""What must hold after every event of a simulated partition: I1 to I9 of the cluster's design."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lakemq.broker_core.api.records.batch import HEADER_BYTES, read_header
from lakemq.meta_service.api.types import PartitionDescription
from tests.support.replica_log import Disk, SimulatedLog, Stored

KEYS = 3
"""Of each producer's batches, for compaction."""


class Broken(AssertionError):
    """An invariant does not hold; the message begins with its number."""


def key_of(stored: Stored) -> tuple[int, int]:
    """What compaction takes for the batch's key."""
    return stored.header.producer_id, stored.header.base_sequence % KEYS


class Invariants:
    """The truth about one partition, as clients could have seen it."""

    def __init__(self) -> None:
        self.acked: dict[int, bytes] = {}
        """Base offset -> body of a batch that a producer was told is stored for good."""
        self.committed: dict[int, bytes] = {}
        """Base offset -> batch below some high watermark: readers may have had it."""
        self._last: dict[int, int] = {}
        """Base offset -> last offset of each of them."""
        self.committed_end = 0
        self.deleted_below = 0
        """Retention has taken what is below, at some leader."""
        self.forgiven: dict[int, bytes] = {}
        """What was committed and lost by an unclean election, which may lose it."""
        self._compacted: set[int] = set()
        """Base offsets of committed batches that newer ones of their key replace, somewhere."""
        self._compacted_end = 0
        """Segments below it were rewritten somewhere."""
        self._begins: dict[tuple[int, int], bool] = {}
        """(epoch, base offset) of a batch -> whether it began a segment where its leader appended
        it."""
        self._restarts: set[int] = set()
        """Where logs began again: there a segment begins that may be a part of another one."""
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
            if self.forgiven.get(base) == stored.data:
                continue  # as a leader of before said
            found = self.committed.setdefault(base, stored.data)
            self._last[base] = stored.header.last_offset
            if found != stored.data:
                raise Broken(f"I2, I3: another batch at {base} of {name} than readers had")
            key = stored.header.producer_id, stored.header.base_sequence
            if self._sequences.setdefault(key, base) != base:
                raise Broken(f"I9: batch {key} lies at {self._sequences[key]} and {base}")
        if log.high_watermark > log.durable_end:
            raise Broken(f"I6: {name} has committed what it has not fsynced")
        self.committed_end = max(self.committed_end, log.high_watermark)

    # ------------------------------------------------------------ what may go

    def deletes(self, name: str, log: SimulatedLog, before: int) -> None:
        """A leader moves its log's start."""
        if before > min(self.committed_end, log.high_watermark):
            raise Broken(f"I1: {name} deletes up to {before}, which is not committed")
        self.deleted_below = max(self.deleted_below, before)

    def compacted(self, name: str, log: SimulatedLog, gone: Sequence[Stored], end: int) -> None:
        """A replica has dropped these batches for newer ones below `end`."""
        # An unclean election leaves replicas that have committed more, until they begin again.
        if gone and end > self.committed_end and not self.forgiven:
            raise Broken(f"I2: {name} compacts up to {end}, {self.committed_end} is committed")
        self._compacted_end = max(self._compacted_end, log.disk.compacted_end)
        newest = {
            key_of(Stored(read_header(data), data)): base
            for base, data in (sorted(self.committed.items()) if gone else ())
        }
        for stored in gone:
            base = stored.header.base_offset
            if newest.get(key_of(stored), -1) <= base:
                raise Broken(f"I2: {name} compacts {base}, which nothing committed replaces")
            self._compacted.add(base)

    def _went(self, base: int) -> bool:
        return base in self._compacted or self._last.get(base, base) < self.deleted_below

    def with_what_went(self, there: Iterable[Stored], start: int, end: int) -> list[Stored]:
        """`there`, and what was committed of this range and went since by the rules."""
        found = {stored.header.base_offset: stored for stored in there}
        if self._compacted or start < self.deleted_below:
            for base, data in self.committed.items():
                within = base < end and self._last[base] >= start
                if within and base not in found and self._went(base):
                    found[base] = Stored(read_header(data), data)
        return [found[base] for base in sorted(found)]

    def forgive(self, disk: Disk) -> set[int]:
        """An operator elects the replica with this disk, where all are lost that had everything:
        what it lacks may be lost. Offsets of the committed records that must stay."""
        there = {each.header.base_offset: each.data for each in disk.batches[: disk.synced]}
        lost = {
            base: data
            for base, data in self.committed.items()
            if there.get(base) != data
            and (base in there or base >= disk.durable_end or not self._went(base))
        }
        self.forgiven |= lost
        for base in lost:
            del self.committed[base]
            self.acked.pop(base, None)
            self._compacted.discard(base)
        places = set(self.committed)
        self._sequences = {key: base for key, base in self._sequences.items() if base in places}
        self.committed_end = min(self.committed_end, disk.durable_end)
        self.deleted_below = min(self.deleted_below, max(disk.start, disk.durable_end))
        headers = [read_header(data) for data in self.committed.values()]
        return {at for each in headers for at in range(each.base_offset, each.last_offset + 1)}

    # ------------------------------------------------------------ leaders

    def leads(
        self, name: str, process: int, epoch: int, log: SimulatedLog, *, current: bool
    ) -> None:
        """A node begins to lead. `current`: it is the newest epoch, as the catalog knows."""
        if self._leaders.setdefault(epoch, (name, process)) != (name, process):
            raise Broken(f"I4: {name} leads epoch {epoch}, as {self._leaders[epoch]} did")
        if current:
            self._has_all(f"I1: leader {name} of epoch {epoch}", log.disk)

    def was_appended(self, epoch: int, base: int, *, begins: bool) -> None:
        """A leader of `epoch` has taken a batch, which `begins` a segment of its log."""
        self._begins[epoch, base] = begins

    def restarted(self, offset: int) -> None:
        """A replica dropped all it had and begins at `offset`."""
        self._restarts.add(offset)

    def was_shipped(self, epoch: int, log: SimulatedLog, base: int, batches: bytes) -> None:
        """A leader sends these: its offsets of its epoch are taken for good. Only compaction leaves
        a gap to where the follower ends."""
        sent = log.batches_between(base, log.log_end_offset)
        gap = sent and sent[0].header.base_offset > base
        if gap and base in self.committed and base not in self._compacted:
            raise Broken(f"I2: what follows {base} is sent from {sent[0].header.base_offset} on")
        for stored in sent:
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

    def catalog_changed(
        self,
        before: PartitionDescription | None,
        row: PartitionDescription,
        disks: dict[str, Disk],
    ) -> None:
        """`disks`: of the nodes whose disk is the one that they are registered with."""
        moved = before is not None and before.target and not row.target
        if moved and set(row.replicas) == set(before.target if before else ()):
            least = min(len(row.replicas), len(before.in_sync) if before else 0)
            if len(row.in_sync) < least:
                raise Broken(f"I12: a move ends with {row.in_sync} in sync of {row.replicas}")
        for name in (*row.in_sync, *row.eligible):
            if name in disks:
                self._has_all(f"I7: {name}, in sync or eligible,", disks[name])

    def _has_all(self, who: str, disk: Disk) -> None:
        if disk.start > self.deleted_below:
            raise Broken(f"{who} starts at {disk.start}, retention took up to {self.deleted_below}")
        there = {stored.header.base_offset: stored.data for stored in disk.batches[: disk.synced]}
        for base, data in self.committed.items():
            if there.get(base) != data and (base in there or not self._went(base)):
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
        """At the end: the same batches everywhere, every acknowledged one among them, once; what
        is missing somewhere went by the rules."""
        start = max(disk.start for disk in disks.values())
        logs = [
            {
                stored.header.base_offset: stored.data
                for stored in disk.batches
                if stored.header.last_offset >= start
            }
            for disk in disks.values()
        ]
        every = {base: data for log in logs for base, data in log.items()}
        for log in logs:
            if any(
                log.get(base, data) != data or (base not in log and base not in self._compacted)
                for base, data in every.items()
            ):
                raise Broken("I2: replicas differ at the end")
        for base, body in self.acked.items():
            found = every.get(base, self.committed.get(base, b""))
            went = base in every or self._went(base)
            if found[HEADER_BYTES:] != body or not went:
                raise Broken(f"I1: the acknowledged batch at {base} is gone at the end")
        headers = [read_header(data) for data in every.values()]
        keys = [(each.producer_id, each.base_sequence) for each in headers]
        if len(set(keys)) < len(keys):
            raise Broken("I9: a batch is stored twice at the end")
        for name, disk in disks.items():
            self._segments_begin(name, disk)

    def _segments_begin(self, name: str, disk: Disk) -> None:
        """D9: segments begin with the same batches everywhere, until compaction."""
        for stored in disk.batches:
            header = stored.header
            base, begins = header.base_offset, header.base_offset in disk.rolls
            if base <= max(disk.start, self._compacted_end) or base in self._restarts:
                continue
            if self._begins[header.leader_epoch, base] is not begins:
                raise Broken(f"D9: {name} begins {'a' if begins else 'no'} segment at {base}")
