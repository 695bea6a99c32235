"""The right to lead, for as long as the controller can't have given it to another node.

A broker leads while its last answered heartbeat was sent less than 2.0 s ago, by its own monotonic
clock. The controller fences for silence when it has heard nothing for longer than that, counted
from receipt, and it answers only while no other controller can have been elected. It fences a
process that seems to be dead 0.4 s after the end of its heartbeat stream at the earliest; who hears
that end and lives cuts its lease to 0.3 s. So a lease ends before another node may lead
(docs/decisions/0026-dead-processes-are-fenced-at-once.md). It guards readers from old data and
writers with acks `leader` from lost records; acks `replicated` are safe without it, by epochs.
"""

from __future__ import annotations

from typing import Final

LEASE_S: Final = 2.0
SUSPECT_S: Final = 0.3
"""What is left when the heartbeat stream broke: the controller may count the process as dead, not
before `meta_service.control.dead_processes.REOPEN_S`."""
_UNANSWERED_MAX: Final = 64


class Lease:
    """One node's lease. `now_s`: of a monotonic clock that goes on while the process is paused."""

    def __init__(self, duration_s: float = LEASE_S) -> None:
        self._duration_s = duration_s
        self._sent: dict[int, float] = {}
        self._until_s = float("-inf")

    def sent(self, number: int, now_s: float) -> None:
        """A heartbeat leaves. Numbers are not used twice. Call it before the bytes go out."""
        self._sent[number] = now_s
        while len(self._sent) > _UNANSWERED_MAX:
            del self._sent[next(iter(self._sent))]

    def answered(self, number: int) -> None:
        """The controller answered that heartbeat and counts this node as active. Unknown numbers
        change nothing."""
        sent_s = self._sent.get(number)
        if sent_s is None:
            return
        self._until_s = max(self._until_s, sent_s + self._duration_s)
        # Those before it are of no use any more: a later sending was answered.
        self._sent = {n: at_s for n, at_s in self._sent.items() if at_s > sent_s}

    def shorten(self, now_s: float, left_s: float = SUSPECT_S) -> None:
        """The heartbeat stream broke: at most `left_s` are left until a heartbeat that is sent from
        now on is answered."""
        self._until_s = min(self._until_s, now_s + left_s)
        self._sent.clear()

    def end(self) -> None:
        """The node is fenced or registers again: no lease until a later heartbeat is answered."""
        self._until_s = float("-inf")
        self._sent.clear()

    def held(self, now_s: float) -> bool:
        """Whether the node may lead now."""
        return now_s < self._until_s

    def left_s(self, now_s: float) -> float:
        """Seconds until it ends; 0 when it is not held."""
        return max(0.0, self._until_s - now_s)
