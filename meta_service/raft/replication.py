"""Log replication. Raft §5.3; Ongaro's thesis §10.2.1 (pipelining and writing in parallel).

What differs from pysyncobj, and why: a follower truncates only where an entry conflicts (stock
truncates behind every message, so a late duplicate drops acknowledged entries); the commit index is
clamped to what the message proves; acknowledgements carry the term and are dropped when it is not
the leader's; a late acknowledgement never rewinds what was sent. All answers that promise something
wait for the fsync at the end of the tick.
"""

from __future__ import annotations

from typing import Any

from lakemq.meta_service.raft.engine import CLOCK
from lakemq.meta_service.raft.log.log_format import Entry
from lakemq.meta_service.raft.log.raft_log import LogFailed
from lakemq.meta_service.raft.recovery import Recovery
from lakemq.meta_service.raft.state import Message


class Replication(Recovery):
    """The part of a Raft node that copies the log."""

    def _init_replication(self) -> None:
        self._probing: set[Any] = set()
        """Members whose log is not known to match: one message at a time goes to them."""
        self._commit_sent: dict[Any, int] = {}
        self._round = 0
        """Number of the current round of appends; acknowledgements echo it."""
        self._round_seen: dict[Any, int] = {}

    # ------------------------------------------------------------ leader

    def _start_leading(self) -> None:
        self._probing = set()
        self._commit_sent = {}
        self._round_seen = {}
        self._newcomers = {}

    def _on_peer_connected(self, peer: Any) -> None:
        self.connected.add(peer)
        if self.is_leader and peer in self.next_index:
            # It may have been away, even with its disk: ask at the end, it says where to go on.
            self.match_index[peer] = 0
            self._probe(peer, self.log.last_index + 1)
            self._send_appends(peer, CLOCK(), is_heartbeat=True)

    def _forget_peer(self, peer: Any) -> None:
        self._probing.discard(peer)
        self._commit_sent.pop(peer, None)
        self._round_seen.pop(peer, None)
        self._newcomers.pop(peer, None)

    def _on_peer_disconnected(self, peer: Any) -> None:
        self.connected.discard(peer)

    def _probe(self, peer: Any, next_index: int) -> None:
        self.next_index[peer] = next_index
        self._probing.add(peer)

    def _SyncObj__sendAppendEntries(self) -> None:
        """Called by pysyncobj when a heartbeat is due or something was added."""
        now = CLOCK()
        is_heartbeat = now >= self.append_time
        if is_heartbeat:
            self.append_time = now + self.timing.heartbeat_s
        for peer in self.peers():
            if peer in self.connected:
                self._send_appends(peer, now, is_heartbeat=is_heartbeat)

    def _send_appends(self, peer: Any, now: float, *, is_heartbeat: bool) -> None:
        if self.next_index[peer] <= self.log.first_index:
            self._send_snapshot(peer, now)
            if is_heartbeat:
                # An empty append keeps it from starting an election while the snapshot is on its
                # way.
                self._append_message(peer, self.log.last_index + 1, [])
            return
        sent = False
        while self._may_send(peer, is_heartbeat and not sent):
            start = self.next_index[peer]
            entries = self.log.entries_from(start, self.timing.batch_max_bytes)
            # Optimistic (thesis §10.2.1): the next message does not wait for the acknowledgement. A
            # loss shows as a mismatch, and the follower says where to go on.
            self.next_index[peer] = start + len(entries)
            self._append_message(peer, start, entries)
            sent = True
        # Followers hear of a commit at once and not with the next heartbeat: a caller may read
        # there.
        news = self.commit_index > self._commit_sent.get(peer, 0) and peer not in self._probing
        if not sent and (is_heartbeat or news):
            self._append_message(peer, self.next_index[peer], [])

    def _may_send(self, peer: Any, is_heartbeat: bool) -> bool:
        next_index = self.next_index[peer]
        if next_index > self.log.last_index:
            return False
        if peer in self._probing:
            return is_heartbeat
        # Bounds what a member that has stopped answering can make the leader send in vain.
        return next_index - self.match_index[peer] <= self.timing.window_entries

    def _append_message(self, peer: Any, start: int, entries: list[Entry]) -> None:
        self._commit_sent[peer] = self.commit_index
        self.post(
            peer,
            {
                "type": "append",
                "term": self.term,
                "prev_index": start - 1,
                "prev_term": self.log.term_at(start - 1),
                "entries": entries,
                "commit": self.commit_index,
                "round": self._round,
            },
        )

    def _on_append_reply(self, peer: Any, message: Message) -> None:
        if message["term"] > self.term:
            self.become_follower(message["term"], None)
        if not self.is_leader or message["term"] != self.term or peer not in self.next_index:
            return  # an answer to another leadership says nothing about this one
        if self._is_of_earlier_life(peer, message):
            return
        self.response_time[peer] = CLOCK()
        # A refusal counts too: it shows that the member still follows this leader's term (§6.4 of
        # the thesis).
        self._round_seen[peer] = max(self._round_seen.get(peer, 0), message["round"])
        index = message["index"]
        if message["ok"]:
            if index > self.log.last_index:
                return  # it acknowledges what this leader does not have: not to be believed
            was_probing = peer in self._probing
            self._probing.discard(peer)
            # Acknowledgements may arrive late and out of order: the match never goes back.
            self.match_index[peer] = max(self.match_index[peer], index)
            if was_probing or self.next_index[peer] <= index:
                self.next_index[peer] = self.match_index[peer] + 1
            self._send_appends(peer, CLOCK(), is_heartbeat=False)
        else:
            # Always at least one step back, whatever the follower says, so that the search ends
            # (§5.3).
            hint = min(index, self.next_index[peer] - 1, self.log.last_index + 1)
            before = self.next_index[peer]
            # Not below what it has acknowledged: a late refusal must not make the leader send it
            # all again.
            self._probe(peer, max(hint, self.match_index[peer] + 1, 1))
            if self.next_index[peer] == before:
                return  # the next heartbeat asks again: an answer for each answer never ends
            if self.next_index[peer] <= self.log.first_index:
                self._send_snapshot(peer, CLOCK())
            else:
                self._send_appends(peer, CLOCK(), is_heartbeat=True)

    def _send_snapshot(self, peer: Any, now: float) -> None:
        """The member needs entries that are gone. Overridden where snapshots are sent."""

    # ------------------------------------------------------------ follower

    def _on_append(self, peer: Any, message: Message) -> None:
        if message["term"] < self.term:
            # The answer carries the newer term, by which the old leader learns that it was deposed
            # (§5.1).
            self._answer_append(peer, message, ok=False, index=self.log.last_index + 1)
            return
        self._follow(peer, message["term"])
        if self._has_forgotten:
            self._ask_leader(peer)
            return
        ok, index = self._match(message)
        if ok:
            self._take(message["entries"], index)
            index += len(message["entries"])
            # Only up to what this message proves to match: entries of an older term may lie behind
            # it (§5.3, rule 5 of AppendEntries).
            self._advance_commit(min(message["commit"], index))
            if self.log.is_new and self._holds_all(message["commit"], index):
                self.log.settle()
        self._answer_append(peer, message, ok=ok, index=index)

    def _holds_all(self, commit: int, index: int) -> bool:
        """Whether a new member has everything that was committed before it came: the leader knows
        what was once it has committed an entry of its own term (§5.4.2)."""
        return self._settles_at <= commit <= index and self.log.term_at(commit) == self.term

    def _follow(self, peer: Any, term: int) -> None:
        """A message of the term's only leader arrived."""
        if self.is_leader and term == self.term:
            # Election safety (§5.2) is broken: going on could lose acknowledged entries, so the
            # member stops.
            raise LogFailed(f"{peer.id} and this member both lead term {term}")
        self.become_follower(term, peer)

    def _match(self, message: Message) -> tuple[bool, int]:
        """(True, previous index), or (False, the index from which the leader should go on)."""
        index, term = message["prev_index"], message["prev_term"]
        # `None`: the leader itself has no entry there any more, so the match cannot be checked.
        if index > self.log.last_index or term is None:
            return False, self.log.last_index + 1
        ours = self.log.term_at(index)
        if ours is None or ours == term:  # below the boundary everything is committed and equal
            return True, index
        # What is committed here is the leader's too: the conflict lies behind it.
        return False, max(self.log.first_index_of_term_at(index), self.commit_index + 1)

    def _take(self, entries: list[Entry], prev_index: int) -> None:
        for offset, (command, index, term) in enumerate(entries):
            if index != prev_index + 1 + offset:
                raise LogFailed(f"the leader sent entry {index} in the place of another")
            # At or below the boundary: applied here, hence committed and equal.
            if index <= self.log.first_index:
                continue
            ours = self.log.term_at(index)
            # Same index and term: the same entry (Log Matching, §5.3). Late duplicates end here.
            if ours == term:
                continue
            if ours is not None:
                self._truncate_conflict(index)
            self.log.add(command, index, term)
            if self._note_entry(command, index):
                self._use_group()

    def _truncate_conflict(self, index: int) -> None:
        if index <= self.commit_index:
            raise LogFailed(f"the leader contradicts entry {index}, which is committed")
        # The log before the groups: the configuration that counts must be one that is still in the
        # log.
        self.log.truncate_from(index)
        self._take_back(index)

    def _advance_commit(self, index: int) -> None:
        # Never back: messages may come out of order after a reconnect.
        self.commit_index = max(self.commit_index, index)
        self.leader_commit = self.commit_index

    def _answer_append(self, peer: Any, message: Message, *, ok: bool, index: int) -> None:
        self.reply(
            peer,
            {
                "type": "append_reply",
                "term": self.term,
                "ok": ok,
                "index": index,
                "round": message["round"],
            },
        )
