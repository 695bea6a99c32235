"""What of sessions must outlive the process, and who waits until it is safe.

A session that outlives its connection is kept as one record, under its client id, in a compacted
topic: the newest record is the session. The ledger notes which sessions changed; the engine writes
all of them in one append and reports back. Answers that promise something (SUBACK, PUBCOMP, ...)
are actions that run when the append that holds the change is durable. While one append is under
way, the next one gathers, so their number follows the disk, not the clients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import islice
from typing import NamedTuple

from lakemq.plugins.mqtt.state.peer import Peer

Action = Callable[[int], None]
"""What to do once it is safe; is given `now_ms`."""


class Waiting(NamedTuple):
    """One action, and the connection that it belongs to."""

    connection: Peer | None
    """Whose action it is; it lapses when the connection has ended."""
    action: Action


class Writing(NamedTuple):
    """One write under way."""

    client_ids: tuple[str, ...]
    waiting: dict[str, list[Waiting]]
    """By client id."""


class Ledger:
    """Changed sessions by client id. What to write is asked for when it is written."""

    def __init__(self) -> None:
        self.urgent: dict[str, list[Waiting]] = {}
        """Sessions to be written as soon as possible, and who waits for that."""
        self.lazy: dict[str, None] = {}
        """Sessions to be written at the next checkpoint; who has waited longest is first."""
        self.writing: Writing | None = None
        self.written = 0
        """Session records written."""
        self.ages: dict[str, int] = {}
        """How many records the node had delivered when each session was last written; oldest
        first."""

    def keep(self, client_id: str, connection: Peer | None, action: Action) -> None:
        """Write the session, then do `action`."""
        self.urgent.setdefault(client_id, []).append(Waiting(connection, action))

    def schedule_write(self, client_id: str) -> None:
        """Write the session soon; no caller waits."""
        self.urgent.setdefault(client_id, [])

    def touch(self, client_id: str) -> None:
        """Write the session at the next checkpoint."""
        self.lazy[client_id] = None

    @property
    def due(self) -> bool:
        """Whether an append can and should begin."""
        return self.writing is None and bool(self.urgent)

    def checkpoint(self, delivered: int, delivered_max: int, count_max: int) -> None:
        """Have lazy sessions written now, and those whose record is so old that a restart would
        have to read more than `delivered_max` records again; at most `count_max` of each."""
        for client_id in list(islice(self.lazy, count_max)):
            self.schedule_write(client_id)
        for client_id, age in list(self.ages.items())[:count_max]:
            if delivered - age < delivered_max:
                break
            self.schedule_write(client_id)

    def begin(self) -> Writing:
        """Take all urgent sessions; their state of this moment is what the caller writes."""
        self.writing = Writing(tuple(self.urgent), self.urgent)
        for client_id in self.urgent:
            self.lazy.pop(client_id, None)
        self.urgent = {}
        return self.writing

    def done(
        self, alive: set[str], delivered: int, now_ms: int, failed: Collection[str] = ()
    ) -> list[Peer]:
        """The write is durable, but for sessions that `failed`, as in `Ledger.failed`. `alive`:
        clients whose session was written, not removed."""
        # Ended before the actions run: they may ask for the next append.
        writing = self._end()
        unanswered = self._again(writing, failed)
        written = [each for each in writing.client_ids if each not in failed]
        self.written += len(written)
        for client_id in written:
            # Taken out and put in again, so that the oldest stay first: `checkpoint` stops at the
            # first one that is young enough.
            self.ages.pop(client_id, None)
            if client_id in alive:
                self.ages[client_id] = delivered
        for client_id in written:
            for waiting in writing.waiting[client_id]:
                if waiting.connection is None or not waiting.connection.ended:
                    waiting.action(now_ms)
        return unanswered

    def failed(self) -> list[Peer]:
        """The append failed: the sessions are written later; returns the connections that cannot
        be answered."""
        writing = self._end()
        return self._again(writing, writing.client_ids)

    def forget(self, client_id: str) -> None:
        """The session is another node's."""
        self.urgent.pop(client_id, None)
        self.lazy.pop(client_id, None)
        self.ages.pop(client_id, None)

    def _again(self, writing: Writing, failed: Collection[str]) -> list[Peer]:
        # Not urgent, which would try again at once and in a loop: storage that failed gets until
        # the next checkpoint.
        self.lazy.update(dict.fromkeys(failed))
        return [
            each.connection
            for client_id in failed
            for each in writing.waiting[client_id]
            if each.connection is not None
        ]

    def _end(self) -> Writing:
        writing, self.writing = self.writing, None
        assert writing is not None
        return writing
