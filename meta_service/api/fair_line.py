"""A line in which peers take turns, so that one that asks for much waits for itself."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

Job = TypeVar("Job")


class FairLine(Generic[Job]):
    """Jobs of each peer in order, peers in turn (round robin)."""

    def __init__(self) -> None:
        self._jobs: dict[str, deque[Job]] = {}
        """Peers that have some, next one first."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def count(self, peer: str) -> int:
        """How many of them are the peer's."""
        return len(self._jobs.get(peer, ()))

    def add(self, peer: str, job: Job) -> None:
        """Append a job to the queue of its peer."""
        self._jobs.setdefault(peer, deque()).append(job)
        self._count += 1

    def take(self) -> Job:
        """The next job. There must be one."""
        # A dict keeps its order, so taking a peer out and adding it again puts it at the end of the
        # line.
        peer = next(iter(self._jobs))
        mine = self._jobs.pop(peer)
        job = mine.popleft()
        if mine:
            self._jobs[peer] = mine
        self._count -= 1
        return job

    def give_way(self, peer: str) -> Job | None:
        """Take out the newest job of the peer that has most, for one of `peer`; None: unless one
        has at least two more jobs than `peer`, that would not be fair."""
        if not self._jobs:
            return None
        largest = max(self._jobs, key=lambda each: len(self._jobs[each]))
        mine = self._jobs[largest]
        # With fewer, taking one would only turn the two peers round.
        if len(mine) < self.count(peer) + 2:
            return None
        self._count -= 1
        return mine.pop()

    def remove(self, peer: str, job: Job) -> None:
        """Take a job out, if it is there."""
        mine = self._jobs.get(peer)
        if mine is None or job not in mine:
            return
        mine.remove(job)
        self._count -= 1
        if not mine:
            del self._jobs[peer]
