"""Who lives: soft state of the leader. Pure; `now_s` is a monotonic time.

Nothing here goes through the log one by one; only the outcome does, as a change of state. A new
leader knows nothing, so it gives everybody the whole time again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from lakemq.meta_service.api.types import NodeRegistration
from lakemq.meta_service.catalog.control_commands import ACTIVE, DRAINING, FENCED

SILENCE_S: Final = 2.25
"""A node not heard for so long is fenced: one that is killed within 2.5 s."""
CALM_S: Final = 0.5
"""A fenced node is active again after so long of unbroken heartbeats."""
CALM_MAX_S: Final = 16.0
"""The most that a flapping node must wait: the time doubles with every fencing."""
FORGIVEN_S: Final = 60.0
"""After so long without a fencing a node is no longer flapping."""
_GAP_S: Final = 1.0
"""A pause between two heartbeats that breaks the calm."""


class Verdict(NamedTuple):
    """A node should get another state."""

    node_id: str
    broker_epoch: int
    state: str


@dataclass
class _Pulse:
    broker_epoch: int
    heard_s: float
    calm_since_s: float
    """Heartbeats came without a pause since then."""
    load: Mapping[str, float] = field(default_factory=dict)
    beats: int = 0


@dataclass
class _Record:
    """How often a node was fenced lately."""

    fenced: int = 0
    last_s: float = float("-inf")


class NodeMonitor:
    """Heartbeats in, verdicts out."""

    def __init__(self) -> None:
        self._pulses: dict[str, _Pulse] = {}
        self._records: dict[str, _Record] = {}
        self._since_s = float("-inf")

    def restart(self, now_s: float) -> None:
        """This member has become the leader."""
        self._pulses.clear()
        self._since_s = now_s

    def beat(
        self, node_id: str, broker_epoch: int, now_s: float, load: Mapping[str, float]
    ) -> None:
        pulse = self._pulses.get(node_id)
        if pulse is None or pulse.broker_epoch != broker_epoch:
            pulse = self._pulses[node_id] = _Pulse(broker_epoch, now_s, now_s)
        if now_s - pulse.heard_s > _GAP_S:
            pulse.calm_since_s = now_s
        pulse.heard_s = now_s
        pulse.load = load
        pulse.beats += 1

    def leave(self, node_id: str) -> None:
        """The node stops in good order: its heartbeats so far count no more."""
        self._pulses.pop(node_id, None)

    def loads(self) -> dict[str, Mapping[str, float]]:
        """The figures of each node's last heartbeat."""
        return {node_id: pulse.load for node_id, pulse in self._pulses.items()}

    def verdicts(self, nodes: Iterable[NodeRegistration], now_s: float) -> list[Verdict]:
        """Which registrations should change, by what was heard."""
        found = []
        for node in nodes:
            state = self._judge(node, now_s) if node.heartbeats else node.state
            if state != node.state:
                found.append(Verdict(node.node_id, node.broker_epoch, state))
        return found

    def _judge(self, node: NodeRegistration, now_s: float) -> str:
        pulse = self._pulses.get(node.node_id)
        if pulse is not None and pulse.broker_epoch != node.broker_epoch:
            pulse = None
        heard_s = pulse.heard_s if pulse else self._since_s
        if node.state in (ACTIVE, DRAINING):
            if now_s - heard_s <= SILENCE_S:
                return node.state
            record = self._records.setdefault(node.node_id, _Record())
            forgiven = now_s - record.last_s > FORGIVEN_S
            record.fenced = 1 if forgiven else record.fenced + 1
            record.last_s = now_s
            return FENCED
        if pulse is None or now_s - pulse.heard_s > _GAP_S:
            return FENCED
        calm = now_s - pulse.calm_since_s >= self._calm_s(node.node_id, now_s)
        return ACTIVE if calm else FENCED

    def _calm_s(self, node_id: str, now_s: float) -> float:
        """How long the heartbeats must come without a pause. The first time: not at all."""
        record = self._records.get(node_id)
        if record is None or now_s - record.last_s > FORGIVEN_S:
            return 0.0
        doubled: float = CALM_S * 2 ** (record.fenced - 1)
        return min(CALM_MAX_S, doubled)
