"""Snapshots for members that need entries which are gone (Raft §7), in bounded chunks.

One chunk is under way at a time, so a large snapshot never crowds out heartbeats. The receiver
checks the whole before it takes the place of its own state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lakemq.meta_service.raft.engine import CLOCK
from lakemq.meta_service.raft.membership import decode_group
from lakemq.meta_service.raft.reads import Reads
from lakemq.meta_service.raft.state import Message, SnapshotSink, SnapshotSource


@dataclass
class _Sending:
    source: SnapshotSource
    position: int
    sent_at: float


@dataclass
class _Receiving:
    sink: SnapshotSink
    leader: Any
    sealing: bool = False


class SnapshotTransfer(Reads):
    """The part of a Raft node that sends and receives snapshots."""

    def _init_transfer(self) -> None:
        self._sending: dict[Any, _Sending] = {}
        self._receiving: _Receiving | None = None
        self.snapshots_sent = 0
        self.snapshots_installed = 0

    # ------------------------------------------------------------ leader

    def _send_snapshot(self, peer: Any, now: float) -> None:
        """Begin, or repeat a chunk that was not answered for a while."""
        sending = self._sending.get(peer)
        if sending is None:
            source = self.snapshots.open_newest()
            if source is not None and source.log_index < self.log.first_index:
                # It ends before the log begins: the entries between would be missing. A newer one
                # is made, and the next heartbeat tries again.
                source.close()
                source = None
            if source is None:
                self.snapshots.begin()
                return
            sending = self._sending[peer] = _Sending(source, 0, float("-inf"))
        if now >= sending.sent_at + self.timing.chunk_repeat_s:
            self._send_chunk(peer, sending, now)

    def _send_chunk(self, peer: Any, sending: _Sending, now: float) -> None:
        sending.sent_at = now
        source = sending.source
        self.post(
            peer,
            {
                "type": "snapshot",
                "term": self.term,
                "index": source.log_index,
                "index_term": source.term,
                "size": source.size,
                "position": sending.position,
                "data": source.read(sending.position, self.timing.chunk_bytes),
            },
        )

    def _on_snapshot_reply(self, peer: Any, message: Message) -> None:
        if message["term"] > self.term:
            self.become_follower(message["term"], None)
        if not self.is_leader or message["term"] != self.term or peer not in self.next_index:
            return
        now = CLOCK()
        self.response_time[peer] = now
        if message["done"]:
            self._end_sending(peer)
            index = message["index"]
            if index <= self.commit_index:
                # A committed prefix is the same everywhere, so a state that ends there counts as
                # matching entries.
                self.match_index[peer] = max(self.match_index[peer], index)
                self._probe(peer, self.match_index[peer] + 1)
                self._send_appends(peer, now, is_heartbeat=True)
            return
        sending = self._sending.get(peer)
        # An answer about an older snapshot whose sending has ended.
        if sending is None or message["index"] != sending.source.log_index:
            return
        position = message["position"]
        if position != sending.position and position <= sending.source.size:
            sending.position = position
            if position < sending.source.size:
                self._send_chunk(peer, sending, now)

    def _end_sending(self, peer: Any) -> None:
        sending = self._sending.pop(peer, None)
        if sending is not None:
            sending.source.close()
            self.snapshots_sent += 1

    def _forget_peer(self, peer: Any) -> None:
        super()._forget_peer(peer)
        sending = self._sending.pop(peer, None)
        if sending is not None:
            sending.source.close()

    def _stop_sending(self) -> None:
        for peer in list(self._sending):
            self._sending.pop(peer).source.close()

    def _end_transfers(self) -> None:
        """The member stops: leave no file open and nothing half received."""
        self._stop_sending()
        receiving, self._receiving = self._receiving, None
        if receiving is not None:
            receiving.sink.discard()

    # ------------------------------------------------------------ follower

    def _on_snapshot(self, peer: Any, message: Message) -> None:
        index = message["index"]
        if message["term"] < self.term:
            self._answer_snapshot(peer, index, position=0, done=False)
            return
        self._follow(peer, message["term"])
        if self._has_forgotten:
            self._ask_leader(peer)
            return
        if index <= self.commit_index:
            self._answer_snapshot(peer, index, position=0, done=True)
            return
        receiving = self._receiving_of(peer, message)
        sink = receiving.sink
        # Any other position is a repeated chunk: the answer tells the leader where to go on.
        if message["position"] == sink.position < sink.size:
            sink.write(message["data"])
        if sink.position == sink.size and not receiving.sealing:
            receiving.sealing = True
            sink.seal()
        self._answer_snapshot(peer, index, position=sink.position, done=False)

    def _receiving_of(self, peer: Any, message: Message) -> _Receiving:
        announced = (message["index"], message["index_term"], message["size"])
        receiving = self._receiving
        if receiving is not None:
            sink = receiving.sink
            # Bytes of two leaders are never mixed: checkpoints of the same index differ in their
            # files.
            if (sink.log_index, sink.term, sink.size) == announced and receiving.leader == peer:
                return receiving
            sink.discard()
        receiving = self._receiving = _Receiving(self.snapshots.receive(*announced), peer)
        return receiving

    def _answer_snapshot(self, peer: Any, index: int, *, position: int, done: bool) -> None:
        self.reply(
            peer,
            {
                "type": "snapshot_reply",
                "term": self.term,
                "index": index,
                "position": position,
                "done": done,
            },
        )

    def _turn_snapshots(self) -> None:
        """Once per tick: put a received snapshot in place when it is checked and durable."""
        receiving = self._receiving
        if receiving is None or not receiving.sealing:
            return
        good = receiving.sink.sealed()
        if good is None:
            return
        self._receiving = None
        # Appends may have brought this member further while the snapshot was checked.
        if good and receiving.sink.log_index > self.commit_index:
            self._install(receiving.sink)
            self._answer_snapshot(receiving.leader, receiving.sink.log_index, position=0, done=True)
        else:
            receiving.sink.discard()

    def _install(self, sink: SnapshotSink) -> None:
        """State first, then the log: a crash between the two is mended at the next start."""
        index, term = sink.log_index, sink.term
        self.machine.install(sink)
        if self.log.term_at(index) == term:
            # §7: if the log has the snapshot's last entry, what follows it is kept.
            self.log.compact_to(index)
        else:
            self.log.reset(index, term)
        self.commit_index = self.applied_index = index
        group = self.machine.group()
        self._restart_from(decode_group(group) if group is not None else None, index)
        self.snapshots_installed += 1
