"""Which brokers' processes are dead beyond doubt, long before their heartbeats are missed.

Three things must come together: the heartbeat stream has ended, no other was opened for `REOPEN_S`,
and another node than the controller's own was refused a connection at the broker's address
meanwhile. A broker that is alive, and whose stream broke, has let its lease run out by then
(`broker_core.replication.lease.SUSPECT_S` is shorter than `REOPEN_S`), so a mistake ends a
leadership and lets no two lead. Silence proves nothing here: cut links and hosts without power stay
with the timeout of heartbeats.

Pure: `now_s` is a monotonic time. Soft state of the Raft leader, of this leadership alone, but for
`member_lost`: the former leader had its own heartbeats, so for it the link of the Raft group stands
in for the stream.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

REOPEN_S: Final = 0.4
"""Time in which a broker that is alive opens its stream again."""
REFUSED_S: Final = 2.0
"""How long a refusal counts; who was refused tries again and reports it with each heartbeat."""

Registration = tuple[str, int]
"""Node id and broker epoch."""


class DeadProcesses:
    """Evidence in, verdicts out."""

    def __init__(self, member_id: str = "") -> None:
        """`member_id`: of this member, whose own node is no witness: what keeps packets from it
        would have made the stream end too."""
        self._member_id = member_id
        self._streams: dict[Registration, set[object]] = {}
        self._ended_s: dict[Registration, float] = {}
        self._refused_s: dict[Registration, float] = {}
        self._lost_members: dict[str, float] = {}

    def restart(self) -> None:
        """This member has become the leader."""
        self._streams.clear()
        self._ended_s.clear()
        self._refused_s.clear()

    def stream_used(self, node_id: str, broker_epoch: int, stream: object) -> None:
        """A heartbeat came on this stream, which is open."""
        self._streams.setdefault((node_id, broker_epoch), set()).add(stream)

    def stream_ended(self, node_id: str, broker_epoch: int, stream: object, now_s: float) -> None:
        """A stream has ended, in whatever way."""
        streams = self._streams.get((node_id, broker_epoch))
        if streams is None or stream not in streams:
            return  # of an earlier leadership, or of a registration that is over
        streams.discard(stream)
        if not streams:
            self._ended_s[node_id, broker_epoch] = now_s

    def member_lost(self, node_id: str, now_s: float) -> None:
        """The Raft link to a member broke off, and no process listens at its address."""
        self._lost_members[node_id] = now_s

    def member_reached(self, node_id: str) -> None:
        """There is a Raft link to the member."""
        self._lost_members.pop(node_id, None)

    def refused(self, witness: str, node_id: str, broker_epoch: int, now_s: float) -> None:
        """`witness` says that the registration's address refuses connections."""
        if witness not in (self._member_id, node_id):
            self._refused_s[node_id, broker_epoch] = now_s

    def is_dead(self, node_id: str, broker_epoch: int, now_s: float) -> bool:
        """Whether the process of this registration is surely gone."""
        key = node_id, broker_epoch
        streams = self._streams.get(key)
        if streams:
            return False
        ended_s = self._lost_members.get(node_id) if streams is None else self._ended_s.get(key)
        refused_s = self._refused_s.get(key)
        if ended_s is None or refused_s is None:
            return False
        return now_s - ended_s >= REOPEN_S and now_s - refused_s <= REFUSED_S

    def keep(self, registrations: Iterable[Registration]) -> None:
        """Forget all others, which are over."""
        kept = set(registrations)
        for table in (self._streams, self._ended_s, self._refused_s):
            for key in [key for key in table if key not in kept]:
                del table[key]
