"""One member of the Raft group: pysyncobj with its unsound parts replaced.

Everything here runs in one thread, between two calls of `tick`. Nothing reads a socket or a file
but through the parts handed in, so a simulation can drive whole clusters from one seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lakemq.meta_service.raft.elections import Elections
from lakemq.meta_service.raft.engine import (
    CLOCK,
    FOLLOWER,
    LEADER,
    MEMBERSHIP,
    REGULAR,
    Peer,
    SyncObjConf,
    peer_named,
)
from lakemq.meta_service.raft.log.log_format import Entry
from lakemq.meta_service.raft.log.raft_log import RaftLog
from lakemq.meta_service.raft.membership import Group, decode_group
from lakemq.meta_service.raft.recovery import Recovery
from lakemq.meta_service.raft.replication import Replication
from lakemq.meta_service.raft.snapshot_transfer import SnapshotTransfer
from lakemq.meta_service.raft.state import (
    APPLIED,
    NO_LEADER,
    NOT_LEADER,
    OUTCOME_UNKNOWN,
    OVERLOADED,
    Answer,
    Machine,
    Message,
    NoTransport,
    RaftTiming,
    Snapshots,
    Wire,
)

_REGULAR_BYTE = bytes([REGULAR])
_MEMBERSHIP_BYTE = bytes([MEMBERSHIP])


class RaftNode(Elections, SnapshotTransfer):
    """A member. `tick` often; `submit` and `on_message` only between ticks, in the same thread."""

    def __init__(
        self,
        member_id: str,
        first_group: Group,
        *,
        log: RaftLog,
        machine: Machine,
        wire: Wire,
        snapshots: Snapshots,
        timing: RaftTiming,
        poller: Any,
    ) -> None:
        self.member_id = member_id
        self.log = log
        self.timing = timing
        self.wire = wire
        self.machine = machine
        self.snapshots = snapshots
        self._replies: list[tuple[Any, Message]] = []
        self._waiting: dict[int, tuple[int, Answer]] = {}
        # Until a configuration was agreed on, the group is the one that was set up.
        stored = machine.group()
        base = decode_group(stored) if stored is not None else first_group
        # Only entries that are not applied yet: `machine.group()` knows the configurations before.
        behind = max(machine.applied_index, log.first_index) - log.first_index + 1
        # Before pysyncobj's own constructor, which reads the log and calls methods that need all of
        # this.
        self._init_membership(base, log[behind:])
        self._init_elections()
        self._init_recovery()
        self._init_replication()
        self._init_reads()
        self._init_transfer()
        self.append_time = 0.0  # pysyncobj looks at every attribute before it sets this one
        network = NoTransport()
        network.outgoing = self._on_engine_message
        conf = SyncObjConf(
            autoTick=False,
            raftMinTimeout=timing.election_min_s,
            raftMaxTimeout=timing.election_max_s,
            appendEntriesPeriod=timing.heartbeat_s,
            leaderFallbackTimeout=timing.leader_fallback_s,
            connectionTimeout=timing.election_max_s * 3,
            journalFile=log,
            pollerType=poller,
        )
        super().__init__(
            Peer(member_id),
            [],
            conf,
            nodeClass=Peer,
            transport=network,
        )
        self._use_group()
        self._elect_if_alone()
        # What the state machine holds is committed; the log may know less after a crash.
        self.applied_index = max(machine.applied_index, log.first_index)
        self.commit_index = self.applied_index

    def begin(self, first_group: Group) -> None:
        """Before the first tick: the group was not known when the node was made."""
        self._groups = [(0, first_group)]
        self._use_group()
        self._elect_if_alone()

    def _elect_if_alone(self) -> None:
        if not self.voters and self.can_vote:
            self.election_deadline = float("-inf")

    # ------------------------------------------------------------ the tick

    def tick(self, wait_s: float = 0.0) -> None:
        """One turn. Waits for work up to `wait_s` at its end. Raises LogFailed: stop for ever."""
        # Before `_onTick`, which looks at the election deadline, and replies behind it, so that one
        # fsync covers all that the tick appended (group commit).
        self._gate_election()
        self._send_timeout_now()
        self._onTick(wait_s)
        if self._transferring and self.state != FOLLOWER:
            self._transferring = False
        self._release_replies()

    def is_busy(self) -> bool:
        """Whether the next tick has something to do at once."""
        if self.commit_index > self.applied_index or self._prevote_won or self._transferring:
            return True
        return not self.voters and self.is_leader and self.log.last_index > self.commit_index

    @property
    def leads_alone(self) -> bool:
        """Whether it leads, and there is no other member, voter or learner."""
        return self.is_leader and not (self.voters or self.learners)

    def reply(self, peer: Any, message: Message) -> None:
        """Keep a message back until the log is durable, at the end of the tick."""
        self._replies.append((peer, message))

    def _release_replies(self) -> None:
        if not self._replies:
            return
        self.log.sync()
        replies, self._replies = self._replies, []
        for peer, message in replies:
            self.post(peer, message)

    # ------------------------------------------------------------ commands

    def submit(self, command: bytes, answer: Answer) -> None:
        """Replicate a command; `answer` is called once, in this thread."""
        if not self.is_leader:
            answer(NOT_LEADER if self.leader is not None else NO_LEADER, None)
            return
        if self.is_handing_over:
            answer(NO_LEADER, None)
            return
        # Refused at once, not queued: the caller knows that nothing was appended and may try again.
        if len(self._waiting) >= self.timing.waiting_max:
            answer(OVERLOADED, None)
            return
        index = self.log.last_index + 1
        self.log.add(_REGULAR_BYTE + command, index, self.term)
        # The term beside the answer: another leader's entry may take this index later.
        self._waiting[index] = (self.term, answer)

    def _checkCommandsToApply(self) -> None:
        """pysyncobj's turn to take commands: they are in the log already, so write them."""
        if self.voters and self.log.synced_index < self.log.last_index:
            self.log.sync()  # after the appends went out: the disk and the network work together
        self._turn_reads()
        self._turn_snapshots()

    def _SyncObj__applyLogEntries(self) -> bool:
        """Apply what is committed; whether pysyncobj should send appends now."""
        # Bounded, so that a member that catches up still ticks in time for heartbeats.
        end = min(self.commit_index, self.applied_index + self.timing.apply_max)
        if self.applied_index < end:
            start = self.applied_index + 1 - self.log.first_index
            entries = self.log[start : end + 1 - self.log.first_index]
            results = [self._apply_entry(entry) for entry in entries]
            # Stored before any of them is answered: an acknowledged command must be in the state
            # that other readers see.
            self.machine.flush()
            for entry, result in zip(entries, results, strict=True):
                self._answer(entry, result)
        return self.is_leader and bool(self.voters or self.learners)

    def _apply_entry(self, entry: Entry) -> Any:
        command, index, term = entry
        result = None
        if command[:1] == _REGULAR_BYTE:
            result = self.machine.apply(index, term, command[1:])
        elif command[:1] == _MEMBERSHIP_BYTE:
            self.machine.set_group(index, term, command[1:])
            self._forget_groups_below(index)
        self.applied_index = index
        return result

    def _answer(self, entry: Entry, result: Any) -> None:
        """Answer the caller that waits for an applied entry."""
        waiting = self._waiting.pop(entry.log_index, None)
        if waiting is None:
            return
        submitted_term, answer = waiting
        if submitted_term == entry.term:
            answer(APPLIED, result)
        else:
            answer(NOT_LEADER, None)  # another leader's entry took its place: surely not applied

    @property
    def waiting(self) -> int:
        """Commands that wait for a majority."""
        return len(self._waiting)

    def _fail_waiting(self, code: str) -> None:
        waiting, self._waiting = self._waiting, {}
        for _, answer in waiting.values():
            answer(code, None)

    # ------------------------------------------------------------ roles

    def become_follower(self, term: int, leader: Any) -> None:
        """Take a term, and the leader if it is known."""
        if term > self.term:
            # A new term begins without a vote, and this is durable when it returns (§5.1).
            self._SyncObj__setCurrentTerm(term, None)
            self.leader = None
        if leader is not None:
            self.leader = leader
            self._heard_leader = CLOCK()
            self._leader_refused = False
            # A leader is there: an election won in advance must not start any more.
            self._prevote_won = False
            self.election_deadline = CLOCK() + self._election_timeout_s()
        self._SyncObj__setState(FOLLOWER)

    def _SyncObj__setState(self, state: int) -> None:
        was_leader = self.is_leader
        self.state = state
        if was_leader and state != LEADER:
            # The next leader may still commit them: its caller must not take it for a failure.
            self._fail_waiting(OUTCOME_UNKNOWN)
            self._stop_leading()

    def _SyncObj__onBecomeLeader(self) -> None:
        self._start_leading()
        self._handing_over_until = float("-inf")
        # A majority has found its log new enough (§5.4.1): it lacks nothing that was committed.
        self.log.settle()
        super()._SyncObj__onBecomeLeader()

    def _stop_leading(self) -> None:
        """What only a leader does ends here."""
        self._fail_reads()
        self._stop_sending()

    def hears_majority(self) -> bool:
        """Whether this leader has heard from a majority within the time for which those that it
        heard elect no other (`_leader_is_alive`). From any thread."""
        since = CLOCK() - self.timing.election_min_s
        heard = [self.response_time.get(peer, since) for peer in list(self.voters)]
        return sum(at > since for at in heard) + 1 >= self.majority

    # ------------------------------------------------------------ messages

    def on_message(self, peer_id: str, message: Message) -> None:
        """A checked message of a known member."""
        handler = self._HANDLERS.get(message["type"])
        if handler is not None:
            handler(self, peer_named(peer_id), message)

    def peer_connected(self, peer_id: str) -> None:
        """The wire can reach a member from now on."""
        self._on_peer_connected(peer_named(peer_id))

    def peer_disconnected(self, peer_id: str) -> None:
        """The wire has lost a member; what was on its way may be lost."""
        self._on_peer_disconnected(peer_named(peer_id))

    def peer_refused(self, peer_id: str) -> None:
        """The link to a member broke off, and no process listens at its address."""
        self._on_peer_refused(peer_named(peer_id))

    _HANDLERS: dict[str, Callable[[Any, Any, Message], None]] = {
        "vote": Elections._on_vote,
        "vote_reply": Elections._on_vote_reply,
        "timeout_now": Elections._on_timeout_now,
        "recover": Recovery._on_recover,
        "recovered": Recovery._on_recovered,
        "append": Replication._on_append,
        "append_reply": Replication._on_append_reply,
        "snapshot": SnapshotTransfer._on_snapshot,
        "snapshot_reply": SnapshotTransfer._on_snapshot_reply,
    }

    # ------------------------------------------------------------ compaction

    def _SyncObj__tryLogCompaction(self) -> None:
        """Drop the log's front once a snapshot that holds it is durable."""
        index = self.snapshots.finished()
        if index is not None:
            # Never beyond what is applied: the boundary's state must be in the machine.
            self.log.compact_to(min(index, self.applied_index))
        if self.log.size_bytes > self.timing.log_max_bytes and self.snapshots.begin():
            self.log_snapshots += 1

    log_snapshots = 0

    def stop(self) -> None:
        """Leave nothing half written. Waiting calls fail with an unknown outcome."""
        self._fail_waiting(OUTCOME_UNKNOWN)
        self._fail_reads()
        self._end_transfers()
        self.wire.close()
        self._doDestroy()
