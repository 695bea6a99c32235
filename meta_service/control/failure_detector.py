"""Which nodes are alive, by their heartbeats: soft state of the Raft leader.

`now_s` is a monotonic time. No heartbeat goes through the log, only what follows from them, as a
change of a node's state. A new leader has heard nothing, so it gives every node the whole timeout
again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from lakemq.meta_service.api.types import NodeRegistration, ReplicaEnd
from lakemq.meta_service.catalog.control_commands import ACTIVE, DRAINING, FENCED
from lakemq.meta_service.control.dead_processes import DeadProcesses
from lakemq.meta_service.control.load_history import figures_of

HEARTBEAT_TIMEOUT_S: Final = 2.0
"""Time without a heartbeat after which a node is fenced, unless it is known to be dead earlier."""
STABLE_S: Final = 0.5
"""Time of uninterrupted heartbeats after which a fenced node is active again."""
STABLE_S_MAX: Final = 16.0
"""Upper bound for a flapping node: the time doubles with every fencing."""
FLAPPING_WINDOW_S: Final = 60.0
"""Time since the last fencing after which a node is not flapping any more."""
_GAP_S: Final = 1.0
"""A pause between two heartbeats that interrupts them."""


class NodeStateChange(NamedTuple):
    """A registration that should get another state."""

    node_id: str
    broker_epoch: int
    state: str


class NodeReport(NamedTuple):
    """What a node says of itself with a heartbeat."""

    load: Mapping[str, float] = MappingProxyType({})
    """Figures of the node's choice."""
    ready: bool = True
    """It may become active, or stay so: it hears the answers to its heartbeats."""
    full: bool = False
    """It can take no new replicas."""
    leaderless: tuple[ReplicaEnd, ...] = ()
    """Its replicas of partitions without a leader."""


@dataclass
class _HeartbeatState:
    """What was heard from one registration."""

    broker_epoch: int
    heard_s: float
    stable_since_s: float
    """Heartbeats came without a gap since then."""
    report: NodeReport = NodeReport()


@dataclass
class _FencingHistory:
    """How often a node was fenced lately."""

    count: int = 0
    last_s: float = float("-inf")


class FailureDetector:
    """Heartbeats in, changes of state out."""

    def __init__(self, member_id: str = "") -> None:
        """`member_id`: of the member that this is a part of."""
        self.processes = DeadProcesses(member_id)
        self._heartbeats: dict[str, _HeartbeatState] = {}
        self._fencings: dict[str, _FencingHistory] = {}
        self._since_s = float("-inf")

    def restart(self, now_s: float) -> None:
        """This member has become the leader."""
        self._heartbeats.clear()
        self.processes.restart()
        self._since_s = now_s

    def record_heartbeat(
        self, node_id: str, broker_epoch: int, now_s: float, report: NodeReport
    ) -> None:
        """Note a heartbeat of a registration, and what came with it. One that is not ready is no
        sign of life: of a node that gets no answers it would be heard for ever."""
        state = self._heartbeats.get(node_id)
        # Another incarnation: what the one before it sent says nothing about it.
        if state is None or state.broker_epoch != broker_epoch:
            state = self._heartbeats[node_id] = _HeartbeatState(broker_epoch, now_s, now_s)
        if report.ready:
            if now_s - state.heard_s > _GAP_S:
                state.stable_since_s = now_s
            state.heard_s = now_s
        state.report = report._replace(load=figures_of(report.load))

    def leave(self, node_id: str) -> None:
        """The node stops in good order: its heartbeats so far count no more."""
        self._heartbeats.pop(node_id, None)

    def loads(self) -> dict[str, Mapping[str, float]]:
        """The figures of each node's last heartbeat."""
        return {node_id: state.report.load for node_id, state in self._heartbeats.items()}

    def leaderless(self, node_id: str) -> Sequence[ReplicaEnd]:
        """What its last heartbeat said of replicas without a leader. Raises KeyError when none was
        heard."""
        return self._heartbeats[node_id].report.leaderless

    def full(self) -> set[str]:
        """Nodes whose last heartbeat said that they can take no new replicas."""
        return {node_id for node_id, state in self._heartbeats.items() if state.report.full}

    def silent_s(self, node_id: str, now_s: float) -> float:
        """Time since the node's last heartbeat. Raises KeyError when none was heard."""
        return now_s - self._heartbeats[node_id].heard_s

    def state_changes(
        self, nodes: Iterable[NodeRegistration], now_s: float
    ) -> list[NodeStateChange]:
        """Registrations whose state is not what their heartbeats say."""
        found = []
        nodes = tuple(nodes)
        self.processes.keep((node.node_id, node.broker_epoch) for node in nodes)
        for node in nodes:
            state = self._state_of(node, now_s) if node.heartbeats else _without_heartbeats(node)
            if state != node.state:
                found.append(NodeStateChange(node.node_id, node.broker_epoch, state))
        return found

    def _state_of(self, node: NodeRegistration, now_s: float) -> str:
        heartbeat = self._heartbeats.get(node.node_id)
        if heartbeat is not None and heartbeat.broker_epoch != node.broker_epoch:
            heartbeat = None
        # A node of which this leader has heard nothing counts from the beginning of its leadership.
        heard_s = heartbeat.heard_s if heartbeat else self._since_s
        is_dead = self.processes.is_dead(node.node_id, node.broker_epoch, now_s)
        if node.state in (ACTIVE, DRAINING):
            if now_s - heard_s <= HEARTBEAT_TIMEOUT_S and not is_dead:
                return node.state
            history = self._fencings.setdefault(node.node_id, _FencingHistory())
            is_flapping = now_s - history.last_s <= FLAPPING_WINDOW_S
            history.count = history.count + 1 if is_flapping else 1
            history.last_s = now_s
            return FENCED
        # To stay active takes less than to become it: a node at the limit does not flap.
        if heartbeat is None or now_s - heartbeat.heard_s > _GAP_S:
            return FENCED
        if node.leaving or is_dead or not heartbeat.report.ready:
            return FENCED
        is_stable = now_s - heartbeat.stable_since_s >= self._stable_s(node.node_id, now_s)
        return ACTIVE if is_stable else FENCED

    def _stable_s(self, node_id: str, now_s: float) -> float:
        """How long heartbeats must come without a gap. Not at all where it is not flapping."""
        history = self._fencings.get(node_id)
        if history is None or now_s - history.last_s > FLAPPING_WINDOW_S:
            return 0.0
        doubled: float = STABLE_S * 2 ** (history.count - 1)
        return min(STABLE_S_MAX, doubled)


def _without_heartbeats(node: NodeRegistration) -> str:
    """Such a node is never missed; from level 4 on it must be let in as any other."""
    return node.state if node.admitted or node.leaving else ACTIVE
