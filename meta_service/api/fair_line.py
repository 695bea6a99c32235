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
        peer = next(iter(self._jobs))
        mine = self._jobs.pop(peer)
        job = mine.popleft()
        if mine:
            self._jobs[peer] = mine
        self._count -= 1
        return job

    def give_way(self, peer: str) -> Job | None:
        """Take out the newest job of who has most, for one of `peer`; None: none has so many
        more that this would be fair."""
        if not self._jobs:
            return None
        largest = max(self._jobs, key=lambda each: len(self._jobs[each]))
        mine = self._jobs[largest]
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
