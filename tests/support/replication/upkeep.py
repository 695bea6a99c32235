"""What a broker does with a simulated log beside replication: retention, compaction, the throttle
of copies. Each is watched by the invariants."""

from __future__ import annotations

import random

from lakemq.broker_core.api.limits.rates import BURST_MS, Bucket
from tests.support.replica_log import SimulatedLog, Stored
from tests.support.replication.invariants import Broken, Invariants, key_of


def delete_records(
    name: str, log: SimulatedLog, invariants: Invariants, rng: random.Random
) -> bool:
    """Move the log's start, at its leader; whether anything was there to delete."""
    highest = min(log.high_watermark, log.remembered_from())
    if log.fenced or highest <= log.log_start_offset:
        return False
    before = rng.randint(log.log_start_offset + 1, highest)
    invariants.deletes(name, log, before)
    log.delete_records(before)
    return True


def compact(name: str, log: SimulatedLog, end: int, invariants: Invariants) -> bool:
    """Drop batches below `end` that newer ones of their key replace; whether there were any."""
    if log.fenced:
        return False
    newest: dict[tuple[int, int], int] = {}
    for stored in log.batches_between(log.log_start_offset, end):
        newest[key_of(stored)] = stored.header.base_offset
    kept_from = log.remembered_from()

    def is_replaced(stored: Stored) -> bool:
        base = stored.header.base_offset
        return base < kept_from and newest.get(key_of(stored), -1) > base

    gone = log.compact(is_replaced, end)
    invariants.compacted(name, log, gone, end)
    return bool(gone)


class Throttle:
    """The bucket of a node, and a count of its own of what it lets through."""

    def __init__(self, bytes_per_s: int, now_s: float) -> None:
        self._rate = bytes_per_s
        self._bucket = Bucket(bytes_per_s, int(now_s * 1000))
        self._since_s = now_s
        self._copied = 0

    def may_send(self, now_s: float) -> bool:
        """Whether the next batches may go to a follower that is far behind."""
        return not self._bucket.pay(0, int(now_s * 1000))

    def sent(self, size: int, now_s: float) -> None:
        """To a follower that counts as far behind."""
        self._bucket.pay(size, int(now_s * 1000))

    def check(self, size: int, now_s: float) -> None:
        """`size` bytes go to a follower that is far behind in truth."""
        most = (now_s - self._since_s + BURST_MS / 1000) * self._rate
        if self._rate and self._copied > most:
            raise Broken(f"I12: {self._copied} bytes were copied, {most:.0f} are allowed")
        self._copied += size
