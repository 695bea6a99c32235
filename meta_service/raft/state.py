"""pysyncobj's private state under plain names, and what the parts of a Raft node share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from lakemq.meta_service.raft.engine import LEADER, Private, SyncObj, Transport
from lakemq.meta_service.raft.log.raft_log import RaftLog

Message = dict[str, Any]
"""One message between members; `type` and `term` are always there."""

Answer = Callable[[str, Any], None]
"""Called once, in the Raft thread, with (code, result)."""
APPLIED: Final = ""
NOT_LEADER: Final = "NOT_LEADER"
NO_LEADER: Final = "NO_LEADER"
OVERLOADED: Final = "OVERLOADED"
OUTCOME_UNKNOWN: Final = "OUTCOME_UNKNOWN"


@dataclass(frozen=True, slots=True)
class RaftTiming:
    """Seconds, and limits of what is under way."""

    election_min_s: float = 0.5
    election_max_s: float = 1.2
    heartbeat_s: float = 0.05
    leader_fallback_s: float = 1.0
    """A leader that has not heard from a majority within this time steps down (check-quorum)."""
    batch_max_bytes: int = 256 * 1024
    """Entries in one append message (bytes)."""
    window_entries: int = 8192
    """Entries sent to a member beyond what it acknowledged."""
    waiting_max: int = 20_000
    """Commands in the log that are not committed yet; more are refused."""
    log_max_bytes: int = 16 * 1024 * 1024
    """The log is shortened behind a snapshot when it is larger than this (bytes)."""
    chunk_bytes: int = 256 * 1024
    """Of a snapshot, in one message (bytes)."""
    chunk_repeat_s: float = 1.0
    """Time after which a chunk without an answer is sent again."""
    apply_max: int = 1024
    """Entries applied in one tick, so that heartbeats are never late."""


class Machine(Protocol):
    """The replicated state machine."""

    @property
    def applied_index(self) -> int:
        """Log index of the last command applied."""

    @property
    def applied_term(self) -> int:
        """Term of that entry."""

    def apply(self, index: int, term: int, command: bytes) -> Any:
        """Apply the command and return its result, to be answered after `flush`. An exception stops
        the member."""

    def flush(self) -> None:
        """Store what was applied since the last call, at once, and show it."""

    def set_group(self, index: int, term: int, group: bytes) -> None:
        """Keep a committed configuration, so that it outlives the log."""

    def group(self) -> bytes | None:
        """The configuration kept last."""

    def install(self, sink: SnapshotSink) -> None:
        """Take the state of a sealed snapshot in place of one's own."""


class Wire(Protocol):
    """Sends messages to other members; may lose them. Never blocks."""

    def send(self, peer: str, message: Message) -> None:
        """Give a message to the network. Raft repairs what is lost, so nothing is reported."""

    def set_peers(self, addresses: Mapping[str, str]) -> None:
        """Who the other members are, and where."""

    def close(self) -> None:
        """End all connections."""


class SnapshotSource(Protocol):
    """A durable snapshot as one run of bytes."""

    log_index: int
    term: int
    size: int

    def read(self, position: int, count: int) -> bytes:
        """Up to `count` bytes from `position`; fewer at the end."""

    def close(self) -> None:
        """Release its files."""


class SnapshotSink(Protocol):
    """A snapshot on its way in."""

    log_index: int
    term: int
    size: int
    position: int
    """Bytes taken so far."""

    def write(self, data: bytes) -> None:
        """The bytes at `position`."""

    def seal(self) -> None:
        """All bytes are there: begin to check them and to make them durable."""

    def sealed(self) -> bool | None:
        """Whether the check succeeded; None: it goes on."""

    def discard(self) -> None:
        """Delete what was received."""


class Snapshots(Protocol):
    """Makes the state durable in the background, so that the log can be shortened."""

    def begin(self) -> bool:
        """Start one, unless one is under way."""

    def finished(self) -> int | None:
        """Log index of a snapshot that has become durable since the last call."""

    def open_newest(self) -> SnapshotSource | None:
        """To be sent, and closed after that; None: there is no durable snapshot."""

    def receive(self, log_index: int, term: int, size: int) -> SnapshotSink:
        """Begin to take a snapshot of `size` bytes."""


class NoTransport(Transport):  # type: ignore[misc] # pysyncobj has no types
    """pysyncobj's view of the network: ready, and silent. Messages go through `Wire`."""

    def __init__(self) -> None:
        self.outgoing: Callable[[Any, Message], None] = lambda peer, message: None
        super().__init__(None, None, [])

    @property
    def ready(self) -> bool:
        """Always: the wire drops what cannot be sent."""
        return True

    def send(self, node: Any, message: Message) -> bool:
        """Hand a message of pysyncobj's own to the node; always True, as losses are repaired by
        Raft."""
        self.outgoing(node, message)
        return True

    def destroy(self) -> None:
        """Nothing to close: the node closes its wire."""


class EngineState(SyncObj):  # type: ignore[misc] # pysyncobj has no types
    """pysyncobj's fields by plain names. Only the Raft thread touches them."""

    state: Private[int] = Private("raftState")
    term: Private[int] = Private("raftCurrentTerm")
    voted_for: Private[str | None] = Private("votedForNodeId")
    leader: Private[Any] = Private("raftLeader")
    election_deadline: Private[float] = Private("raftElectionDeadline")
    commit_index: Private[int] = Private("raftCommitIndex")
    applied_index: Private[int] = Private("raftLastApplied")
    next_index: Private[dict[Any, int]] = Private("raftNextIndex")
    match_index: Private[dict[Any, int]] = Private("raftMatchIndex")
    response_time: Private[dict[Any, float]] = Private("lastResponseTime")
    voters: Private[set[Any]] = Private("otherNodes")
    """The other members that vote."""
    learners: Private[set[Any]] = Private("readonlyNodes")
    connected: Private[set[Any]] = Private("connectedNodes")
    append_time: Private[float] = Private("newAppendEntriesTime")
    noop_index: Private[int | None] = Private("noopIDx")
    leader_commit: Private[int | None] = Private("leaderCommitIndex")

    log: RaftLog
    member_id: str
    timing: RaftTiming
    wire: Wire
    machine: Machine
    snapshots: Snapshots

    @property
    def is_leader(self) -> bool:
        """Whether this member leads its term, as far as it knows."""
        return self.state == LEADER

    @property
    def majority(self) -> int:
        """Members, this one included, that make a majority of the voters."""
        return (len(self.voters) + 1) // 2 + 1

    def peers(self) -> Sequence[Any]:
        """The other members, voters and learners, in a fixed order."""
        return sorted(self.voters | self.learners, key=lambda peer: str(peer.id))

    def post(self, peer: Any, message: Message) -> None:
        """Send a message that promises nothing about this member's disk."""
        self.wire.send(peer.id, message)

    def reply(self, peer: Any, message: Message) -> None:
        """Send at the end of the tick, when the log is durable."""
        raise NotImplementedError

    def become_follower(self, term: int, leader: Any) -> None:
        """Take a term and its leader, if that is known; `RaftNode` does."""
        raise NotImplementedError
