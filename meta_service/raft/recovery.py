"""A member whose disk is empty promises nothing until a leader has outlived whatever it forgot.

It may be a voter that acknowledged and voted on a disk that was replaced: helping a leader of an
older term now would let that commit what others were told is otherwise. So it asks the leader that
it hears. The leader appends an entry and answers once that is on a majority of the voters that does
not count the asker. Every majority that ever counted the forgotten promises shares a member with
this one: had that gone on to a newer term before, it would have refused the entry; from now on it
elects only who has the entry, and no candidate from before the question can.

Viewstamped Replication's recovery (Liskov, Cowling: VR Revisited, §4.3) asks for the terms of
others only. With four voters or more that is too little: a vote on its way to a candidate that was
not asked still counts later (Michael et al., DISC 2017). Hence the entry.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from lakemq.meta_service.raft.engine import NO_OP, RNG
from lakemq.meta_service.raft.membership import Membership
from lakemq.meta_service.raft.state import Message

_NO_OP_BYTE = bytes([NO_OP])
_NONCES = 2**53


class _Newcomer(NamedTuple):
    """A member that asked, as the leader knows it."""

    nonce: int
    """Of the question: the asker draws it when it starts."""
    log_index: int
    """Of the entry appended for it."""
    first_round: int
    """Answers to earlier rounds of appends are of a life that the member has forgotten."""


class Recovery(Membership):
    """The part of a Raft node that begins again with an empty disk."""

    _round: int

    def _init_recovery(self) -> None:
        self._recovered = False
        self._nonce = int(RNG.random() * _NONCES) if self.log.is_new else 0
        self._settles_at = 0
        """It lacks nothing that it ever acknowledged when it has everything up to here."""
        self._newcomers: dict[Any, _Newcomer] = {}

    @property
    def _has_forgotten(self) -> bool:
        """Whether it may have promised what it does not know."""
        return self.log.is_new and not self._recovered

    # ------------------------------------------------------------ the new member

    def _ask_leader(self, leader: Any) -> None:
        self.post(leader, {"type": "recover", "term": self.term, "nonce": self._nonce})

    def _on_recovered(self, peer: Any, message: Message) -> None:
        """The leader of a term has outlived what this member forgot."""
        # The nonce ties the answer to this life: an answer to an earlier one says nothing about
        # what was promised since.
        if not self._has_forgotten or message["nonce"] != self._nonce:
            return
        if message["term"] < self.term:
            return
        self.become_follower(message["term"], peer)
        # It may have voted in this very term: taken as given, so that it is not given again.
        self._SyncObj__setCurrentTerm(message["term"], self.member_id)
        self._settles_at = message["index"]
        self._recovered = True

    # ------------------------------------------------------------ the leader

    def _on_recover(self, peer: Any, message: Message) -> None:
        """Asked with every heartbeat until it is answered."""
        if message["term"] > self.term:
            self.become_follower(message["term"], None)
        if not self.is_leader or peer not in self.next_index or self.is_handing_over:
            return
        newcomer = self._newcomers.get(peer)
        # Another nonce is another empty disk: what was acknowledged for the former one is gone
        # again.
        if newcomer is None or newcomer.nonce != message["nonce"]:
            newcomer = self._begin_recovery(peer, message["nonce"])
        if self._outlives(peer, newcomer.log_index):
            answer = {"type": "recovered", "term": self.term, "nonce": newcomer.nonce}
            self.post(peer, {**answer, "index": newcomer.log_index})

    def _begin_recovery(self, peer: Any, nonce: int) -> _Newcomer:
        # Its acknowledgements are forgotten with its disk and must not count for a majority any
        # more.
        self.match_index[peer] = 0
        self._round += 1
        newcomer = _Newcomer(nonce, self.log.last_index + 1, self._round)
        self.log.add(_NO_OP_BYTE, newcomer.log_index, self.term)
        self._newcomers[peer] = newcomer
        return newcomer

    def _outlives(self, peer: Any, index: int) -> bool:
        """Whether the entry is on a majority without `peer`; of two voters, on the other one."""
        others = self.voters - {peer}
        having = [other for other in others if self.match_index[other] >= index]
        needed = min(self.majority, len(others) + 1)
        # This member counts only for what it has fsynced.
        return self.log.synced_index >= index and len(having) + 1 >= needed

    def _is_of_earlier_life(self, peer: Any, message: Message) -> bool:
        """Whether an answer was sent before the member lost its disk."""
        newcomer = self._newcomers.get(peer)
        return newcomer is not None and bool(message["round"] < newcomer.first_round)

    @property
    def is_handing_over(self) -> bool:
        """Whether a leadership transfer is under way; `Elections` knows."""
        raise NotImplementedError
