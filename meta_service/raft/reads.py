"""Linearizable reads without a log entry: ReadIndex (Ongaro's thesis §6.4).

A read waits until a majority has answered a round of appends that began after the read came, and
until what was committed then is applied here. Reads that come while a round is under way share the
next one.
"""

from __future__ import annotations

from typing import NamedTuple

from lakemq.meta_service.raft.engine import CLOCK
from lakemq.meta_service.raft.replication import Replication
from lakemq.meta_service.raft.state import APPLIED, NO_LEADER, NOT_LEADER, Answer


class _Read(NamedTuple):
    applied: int
    """Log index that must be applied first."""
    round: int
    """Round of appends that a majority must answer first."""
    answer: Answer


class Reads(Replication):
    """The part of a Raft node that makes reads linearizable."""

    def _init_reads(self) -> None:
        self._reads: list[_Read] = []
        self._round_time = float("-inf")
        self.rounds = 0

    def read_barrier(self, answer: Answer) -> None:
        """Answer once everything acknowledged before this call is applied here."""
        if not self.is_leader:
            answer(NOT_LEADER if self.leader is not None else NO_LEADER, None)
            return
        # Before this leader's first entry is committed it does not know what is (§6.4, step 1).
        applied = max(self.commit_index, self.noop_index or 0)
        if not self.voters and self.applied_index >= applied:
            answer(APPLIED, None)
            return
        # The next round, not the present one: its messages may have left before the read came, and
        # prove nothing about leadership since.
        self._reads.append(_Read(applied, self._round + 1 if self.voters else 0, answer))

    def _turn_reads(self) -> None:
        """Once per tick: answer what is confirmed, begin a round for what is not."""
        if not self._reads:
            return
        confirmed = self._confirmed_round()
        reads, self._reads = self._reads, []
        for read in reads:
            if read.round <= confirmed and read.applied <= self.applied_index:
                read.answer(APPLIED, None)
            else:
                self._reads.append(read)
        self._begin_round(confirmed)

    def _confirmed_round(self) -> int:
        """Highest round that a majority has answered; this member is one of it."""
        seen = sorted((self._round_seen.get(peer, 0) for peer in self.voters), reverse=True)
        # Descending, so place k - 1 holds the round that k others have seen; with this member k =
        # majority - 1 are enough.
        return seen[self.majority - 2] if self.voters else self._round

    def _begin_round(self, confirmed: int) -> None:
        wanted = max((read.round for read in self._reads), default=0)
        now = CLOCK()
        under_way = confirmed < self._round and now < self._round_time + self.timing.heartbeat_s
        # Reads that came during a round share the next one, which begins when this one is confirmed
        # or a heartbeat old. Lost messages need no repeat: every append carries the number of the
        # round.
        if wanted <= self._round or under_way:
            return
        self._round += 1
        self.rounds += 1
        self._round_time = now
        for peer in self.peers():
            if peer in self.connected:
                self._send_appends(peer, now, is_heartbeat=True)

    def _fail_reads(self) -> None:
        reads, self._reads = self._reads, []
        for read in reads:
            # Safe to retry elsewhere: a read has changed nothing.
            read.answer(NOT_LEADER, None)
