"""Elections: pre-vote, votes that count once per voter, leader stickiness, transfer.

Raft §5.2, §5.4.1; Ongaro's thesis §4.2.3 (disruptive servers), §9.6 (pre-vote), §3.10 (transfer).
pysyncobj starts the real election itself when the deadline passes; here it only passes once a
majority said in a pre-vote that it would vote.
"""

from __future__ import annotations

from typing import Any, Final

from lakemq.meta_service.raft.engine import CANDIDATE, CLOCK, FOLLOWER, RNG
from lakemq.meta_service.raft.recovery import Recovery
from lakemq.meta_service.raft.state import Message

QUICK_MIN_S: Final = 0.15
"""Shortest election timeout while the leader is known to be dead, longer than an election takes."""


class Elections(Recovery):
    """The part of a Raft node that elects."""

    def _init_elections(self) -> None:
        self._votes: set[Any] = set()
        self._prevotes: set[Any] = set()
        self._prevote_term = 0
        self._prevote_won = False
        self._transferring = False
        self._heard_leader = float("-inf")
        self._leader_refused = False
        self._handing_over_until = float("-inf")
        self._transfer_target: Any = None
        self.elections = 0

    def _election_timeout_s(self) -> float:
        least_s, most_s = self.timing.election_min_s, self.timing.election_max_s
        if self._leader_refused:
            least_s, most_s = QUICK_MIN_S, least_s
        return least_s + (most_s - least_s) * RNG.random()

    @property
    def _may_campaign(self) -> bool:
        """A new member's log may lack what its old disk held, unless no member has entries."""
        return self.can_vote and not (self.log.is_new and self._others_have_entries)

    def _gate_election(self) -> None:
        """Before pysyncobj looks at the deadline: ask first whether others would vote."""
        now = CLOCK()
        if self._transferring:
            # The old leader's heartbeats, on their way already, must not put the election off.
            self.election_deadline = float("-inf")
        # pysyncobj starts an election as soon as the deadline has passed, so only a deadline that
        # is moved to the past lets it through.
        if self.is_leader or self.election_deadline >= now:
            return
        if not self._may_campaign:
            self.election_deadline = now + self._election_timeout_s()
            return
        # A transfer skips the pre-vote: the old leader, which is alive, asked for it. A single
        # voter has no one to ask.
        if self._prevote_won or self._transferring or not self.voters:
            self._prevote_won = False
            self.elections += 1
            return
        self.election_deadline = now + self._election_timeout_s()
        # A pre-vote asks about the next term without taking it, so a member that was cut off does
        # not raise the term of a group that works (thesis §9.6).
        self._prevote_term = self.term + 1
        self._prevotes = set()
        for peer in self.voters:
            self.post(peer, self._vote_request(self._prevote_term, pre=True))

    def _vote_request(self, term: int, *, pre: bool) -> Message:
        return {
            "type": "vote",
            "term": term,
            "pre": pre,
            "transfer": self._transferring,
            "last_index": self.log.last_index,
            "last_term": self.log.last_term,
        }

    def _on_engine_message(self, peer: Any, message: Message) -> None:
        """What pysyncobj itself sends: requests for votes, and leadership transfers."""
        if message["type"] == "request_vote":
            self._votes = set()
            self.reply(peer, self._vote_request(message["term"], pre=False))
        elif message["type"] == "timeout_now":
            self.reply(peer, message)

    def _on_peer_refused(self, peer: Any) -> None:
        """The leader's process is dead: who finds that out elects another without waiting, as
        the others find it out too. Only when, never whether an election is won, rests on it."""
        if peer == self.leader and not self.is_leader:
            self._leader_refused = True
            self._heard_leader = float("-inf")
            due = CLOCK() + QUICK_MIN_S * RNG.random()
            self.election_deadline = min(self.election_deadline, due)

    # ------------------------------------------------------------ asked for a vote

    def _leader_is_alive(self) -> bool:
        if self.is_leader:
            return True
        return CLOCK() < self._heard_leader + self.timing.election_min_s

    @property
    def _others_have_entries(self) -> bool:
        """Whether this member has met a leader: it has received entries, or recovered."""
        return self.log.last_term > 0 or self._recovered

    def _has_newer_log(self, message: Message) -> bool:
        """Whether the candidate's log is at least as new as ours (§5.4.1).

        A member that begins with an empty disk may be a voter that lost what it acknowledged. Until
        a leader has brought it up to date it only votes where no member has entries: at the
        beginning of a cluster.
        """
        if self.log.is_new and (message["last_term"] > 0 or self._others_have_entries):
            return False
        candidate = (message["last_term"], message["last_index"])
        return candidate >= (self.log.last_term, self.log.last_index)

    def _on_vote(self, peer: Any, message: Message) -> None:
        # Leader stickiness (thesis §4.2.3): no answer at all, and no new term either, so that a
        # removed or isolated member cannot depose a leader that a majority still hears.
        if self._leader_is_alive() and not message["transfer"]:
            return
        if message["pre"]:
            granted = message["term"] > self.term and self._has_newer_log(message)
            # A granted pre-vote changes neither term nor vote here, so nothing of it is stored.
            answer = message["term"] if granted else self.term
            self._answer_vote(peer, answer, granted=granted, pre=True)
            return
        if message["term"] > self.term:
            self.become_follower(message["term"], None)
        granted = (
            message["term"] == self.term
            and self.state == FOLLOWER
            and self.voted_for in (None, peer.id)
            and self._has_newer_log(message)
        )
        if granted:
            # Stored before the reply leaves: a crash between the two only loses a vote (§5.2). A
            # repeated request finds the same vote and needs no second write.
            if self.voted_for is None:
                self._SyncObj__setCurrentTerm(self.term, peer.id)
            self.election_deadline = CLOCK() + self._election_timeout_s()
            self.log.settle()
        self._answer_vote(peer, self.term, granted=granted, pre=False)

    def _answer_vote(self, peer: Any, term: int, *, granted: bool, pre: bool) -> None:
        self.reply(peer, {"type": "vote_reply", "term": term, "granted": granted, "pre": pre})

    # ------------------------------------------------------------ given a vote

    def _on_vote_reply(self, peer: Any, message: Message) -> None:
        if not message["granted"]:
            if message["term"] > self.term:
                self.become_follower(message["term"], None)
            return
        # A learner's vote must not count, nor that of a member that has left since it was asked.
        if peer not in self.voters:
            return
        if message["pre"]:
            self._on_prevote(peer, message["term"])
        elif self.state == CANDIDATE and message["term"] == self.term:
            # A set: the same vote may arrive twice, after a reconnect, and counts once.
            self._votes.add(peer)
            # Plus one: the candidate voted for itself.
            if len(self._votes) + 1 >= self.majority:
                self._SyncObj__onBecomeLeader()

    def _on_prevote(self, peer: Any, term: int) -> None:
        # Answers to an earlier pre-vote say nothing about the logs as they are now.
        if self.is_leader or term != self._prevote_term or term != self.term + 1:
            return
        self._prevotes.add(peer)
        if len(self._prevotes) + 1 >= self.majority:
            self._prevote_won = True
            self._prevote_term = 0
            self.election_deadline = float("-inf")

    # ------------------------------------------------------------ transfer

    def transfer_leadership(self, target: str | None) -> bool:
        """Let a member that has nearly everything take over; whether there is one.

        It is asked once it has everything, which it soon has: no command is taken meanwhile, as one
        taken now would make its log too old to be elected (§3.10).
        """
        if not self.is_leader:
            return False
        ready = [
            peer
            for peer in self.peers()
            if peer in self.voters
            and self._answers(peer)
            and target in (None, peer.id)
            and self._lag(peer) <= self.timing.window_entries
        ]
        if not ready:
            return False
        # Bounded: if the target dies meanwhile, this leader takes commands again (§3.10).
        self._handing_over_until = CLOCK() + self.timing.election_min_s
        self._transfer_target = min(ready, key=self._lag)
        self._send_timeout_now()
        return True

    def _send_timeout_now(self) -> None:
        """Once per tick."""
        target = self._transfer_target
        if target is None:
            return
        if not self.is_leader or not self.is_handing_over:
            self._transfer_target = None
        # Only now: before it has every entry the others would refuse to elect it.
        elif self._lag(target) == 0:
            self._transfer_target = None
            self.post(target, {"type": "timeout_now", "term": self.term})

    @property
    def is_handing_over(self) -> bool:
        """Whether a leadership transfer is under way, which lasts at most the shortest election
        timeout."""
        return CLOCK() < self._handing_over_until

    def _on_timeout_now(self, peer: Any, message: Message) -> None:
        """The leader asks this member to take over at once."""
        # A late request of an older leadership must not disturb the present one.
        if message["term"] == self.term and peer == self.leader and self._may_campaign:
            self._transferring = True
            self.election_deadline = float("-inf")
