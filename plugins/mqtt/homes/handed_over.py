"""What sessions that this node handed over had as members of shared groups. No IO.

An owner answers its home with a session's state, and forgets the session. The home may have no use
for it by then: another node has the session in a later epoch, or got what was kept of it since the
answer took too long. It says so, or asks again where the answer did not come. What the session was
given here as a member of a group, and had not finished, is then given to other members: no other
node knows of it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from lakemq.plugins.mqtt.routing.hub import Hub
from lakemq.plugins.mqtt.routing.shared import Group
from lakemq.plugins.mqtt.state.delivery import Delivery
from lakemq.plugins.mqtt.state.sessions import Session

KEPT_MS: Final = 10_000
"""As long as other nodes keep what fell to this one (`interest.picking`)."""
KEPT_MAX: Final = 50_000
"""Deliveries that are kept at most, of all sessions."""
KEPT_MAX_BYTES: Final = 64 * 1024 * 1024


class _Kept(NamedTuple):
    """Of one session."""

    epoch: int
    """In which its home asked for it."""
    at_ms: int
    deliveries: list[Delivery]
    size_bytes: int


class HandedOver:
    """Of one node."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._kept: dict[str, _Kept] = {}
        """By client id, the oldest first."""
        self._count = self._bytes = 0

    def note(self, session: Session, epoch: int, now_ms: int) -> None:
        """The session's state goes to its home, which asked in this epoch."""
        self._forget(session.client_id)
        found = [one for one in session.outbound.unfinished() if isinstance(one.shared, Group)]
        size_bytes = sum(one.size_bytes for one in found)
        if not found or len(found) > KEPT_MAX or size_bytes > KEPT_MAX_BYTES:
            return
        while self._count + len(found) > KEPT_MAX or self._bytes + size_bytes > KEPT_MAX_BYTES:
            self._forget(next(iter(self._kept)))
        self._kept[session.client_id] = _Kept(epoch, now_ms, found, size_bytes)
        self._count += len(found)
        self._bytes += size_bytes

    def unused(self, client_id: str, epoch: int, now_ms: int) -> None:
        """The home has no use for the state that it asked for in this epoch."""
        kept = self._kept.get(client_id)
        if kept is not None and kept.epoch == epoch:
            self._forget(client_id)
            self._hub.session_table.hand_on(kept.deliveries, now_ms)

    def tick(self, now_ms: int) -> None:
        """Call about once a second."""
        while self._kept:
            client_id, kept = next(iter(self._kept.items()))
            if now_ms - kept.at_ms < KEPT_MS:
                return
            self._forget(client_id)

    def _forget(self, client_id: str) -> None:
        kept = self._kept.pop(client_id, None)
        if kept is not None:
            self._count -= len(kept.deliveries)
            self._bytes -= kept.size_bytes
