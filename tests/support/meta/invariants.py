"""Raft's invariants (Ongaro's thesis, figure 3.2), checked while a simulation runs."""

from __future__ import annotations

from lakemq.meta_service.catalog.apply import Applied
from lakemq.meta_service.raft.engine import MEMBERSHIP
from lakemq.meta_service.raft.log.log_format import Entry
from lakemq.meta_service.raft.membership import decode_group
from lakemq.meta_service.raft.node import RaftNode
from lakemq.meta_service.raft.state import Message

GROUP = bytes([MEMBERSHIP])


class Invariants:
    """Remembers what must never be contradicted. A violation raises AssertionError."""

    def __init__(self, label: str) -> None:
        self.label = label
        self._leader_of_term: dict[int, str] = {}
        self._entries: dict[tuple[int, int], tuple[bytes, int]] = {}
        self._committed: dict[int, tuple[int, int]] = {}
        """Log index -> term of the entry that some member took for committed, and its own term."""
        self._digests: dict[int, bytes] = {}
        self._seen: dict[str, tuple[int, int, int]] = {}
        """Member -> (term, commit index, applied index)."""
        self._votes: dict[tuple[str, int], str] = {}
        """(member, term) -> whom it voted for."""
        self._promised: dict[str, int] = {}
        """Member -> highest term that it told others it was in."""
        self.elections = 0

    def sent(self, name: str, peer: str, message: Message) -> None:
        """One vote in a term, however often the member crashes; its term is remembered too."""
        kind = message["type"]
        if kind in ("timeout_now", "append", "snapshot") or message.get("pre"):
            return
        term = message["term"]
        self._promised[name] = max(self._promised.get(name, 0), term)
        if kind == "vote" or (kind == "vote_reply" and message["granted"]):
            choice = name if kind == "vote" else peer
            known = self._votes.setdefault((name, term), choice)
            assert known == choice, f"{self.label}: {name} votes twice in term {term}"

    def wiped(self, name: str) -> None:
        """The member forgot its promises."""
        self._promised.pop(name, None)
        self._votes = {pair: choice for pair, choice in self._votes.items() if pair[0] != name}

    def started(self, name: str, node: RaftNode) -> None:
        promised = self._promised.get(name, 0)
        assert node.term >= promised, f"{self.label}: {name} forgot that it was in term {promised}"
        self._seen[name] = (node.term, node.commit_index, node.applied_index)

    def stopped(self, name: str) -> None:
        self._seen.pop(name, None)

    def entry_written(self, entry: Entry, previous_term: int) -> None:
        """Log matching: index and term tell the entry, and all before it."""
        told = (entry.command, previous_term)
        known = self._entries.setdefault((entry.log_index, entry.term), told)
        assert known == told, f"{self.label}: log matching broken at {entry.log_index}"

    def applied(self, name: str, applied: Applied) -> None:
        """State machine safety: the same state behind the same index."""
        index, digest = applied.state.applied_index, applied.state.digest
        known = self._digests.setdefault(index, digest)
        assert known == digest, f"{self.label}: {name} applied something else at {index}"

    def check(self, name: str, node: RaftNode) -> None:
        """After an event at a member."""
        self._check_progress(name, node)
        self._check_committed(name, node)
        self._check_group(name, node)
        if node.is_leader:
            self._check_leader(name, node)

    def _check_progress(self, name: str, node: RaftNode) -> None:
        term, commit, applied = self._seen[name]
        assert node.term >= term, f"{self.label}: {name} went back to term {node.term}"
        assert node.commit_index >= commit, f"{self.label}: {name} took a commit back"
        assert node.applied_index >= applied, f"{self.label}: {name} took an apply back"
        assert node.applied_index <= node.commit_index <= node.log.last_index, (
            f"{self.label}: {name} applied {node.applied_index}, committed {node.commit_index}, "
            f"has {node.log.last_index}"
        )

    def _check_committed(self, name: str, node: RaftNode) -> None:
        term, commit, _ = self._seen[name]
        for index in range(max(commit, node.log.first_index) + 1, node.commit_index + 1):
            entry_term = node.log.term_at(index)
            assert entry_term is not None
            known, _ = self._committed.setdefault(index, (entry_term, node.term))
            assert known == entry_term, f"{self.label}: {name} committed another entry at {index}"
        self._seen[name] = (node.term, node.commit_index, node.applied_index)

    def _check_group(self, name: str, node: RaftNode) -> None:
        """The configuration that counts is the newest one in the log (thesis §4.1)."""
        voters = {str(peer.id) for peer in node.voters}
        assert voters == set(node.group.voters) - {name}, f"{self.label}: {name} counts {voters}"
        newest = next(
            (entry for entry in reversed(node.log[1:]) if entry.command[:1] == GROUP), None
        )
        if newest is not None:
            assert node.group == decode_group(newest.command[1:]), (
                f"{self.label}: {name} goes by another group than that of entry {newest.log_index}"
            )

    def _check_leader(self, name: str, node: RaftNode) -> None:
        """Election safety, and leader completeness when it is elected: it has what was committed
        in lower terms. One that slept may learn late that it leads a term that is over."""
        if node.term in self._leader_of_term:
            known = self._leader_of_term[node.term]
            assert known == name, f"{self.label}: {known} and {name} both lead term {node.term}"
            return
        self._leader_of_term[node.term] = name
        self.elections += 1
        for index, (term, committed_in) in self._committed.items():
            if index > node.log.first_index and committed_in < node.term:
                assert node.log.term_at(index) == term, (
                    f"{self.label}: {name} leads term {node.term} without entry {index}"
                )
