"""Time, rng and network of a simulation."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable

CONTROLLER = "controller"


class World:
    """Events in the order of simulated time. Messages are calls, carried with a delay."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_s = 100.0
        self.after_event: Callable[[], None] = lambda: None
        self.cut: set[tuple[str, str]] = set()
        """Links (from, to) that carry nothing."""
        self.loss = self.repeat = self.late = 0.0
        """Part of the messages that are lost, come twice, or are late by up to half a second."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def at(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + delay_s, next(self._count), action))

    def send(self, source: str, target: str, deliver: Callable[[], None]) -> None:
        rng = self.rng
        if rng.random() < self.loss:
            return
        for _ in range(2 if rng.random() < self.repeat else 1):
            delay_s = rng.uniform(0.0005, 0.005)
            if rng.random() < self.late:
                delay_s += rng.uniform(0.0, 0.5)

            def arrive() -> None:
                if (source, target) not in self.cut:
                    deliver()

            self.at(delay_s, arrive)

    def run_for(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self._events and self._events[0][0] <= end_s:
            self.now_s, _, action = heapq.heappop(self._events)
            action()
            self.after_event()
        self.now_s = end_s

    def heal(self) -> None:
        """The network works."""
        self.cut.clear()
        self.loss = self.repeat = self.late = 0.0
