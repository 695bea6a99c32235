"""Time, rng, network and machines of a simulation."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable

from tests.support.replica_log import Disk, SimulatedLog

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
        self.flips = 0.0
        """Part of the batches whose copies come with a flipped bit."""
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
        self.loss = self.repeat = self.late = self.flips = 0.0


class Machine:
    """A disk, and the process that runs on it unless it is down."""

    def __init__(self, name: str, world: World) -> None:
        self.name = name
        self.world, self.rng = world, world.rng
        self.disk = Disk(f"{ord(name):016x}{1:016x}")
        self.process = 0
        self.up = self.paused = self.leaving = False
        self._inbox: list[Callable[[], None]] = []
        self.log = SimulatedLog(self.disk)

    def _every(self, seconds: float, action: Callable[[], None], process: int) -> None:
        def again() -> None:
            if self.process == process and self.up:
                self.run(action)
                self.world.at(seconds * self.rng.uniform(0.8, 1.2), again)

        self.world.at(seconds * self.rng.random(), again)

    def crash(self) -> None:
        """Power off: nobody is told anything."""
        self._end()
        self.disk.lose_power(self.rng)

    def _end(self) -> None:
        self.up = self.paused = False
        self.process += 1
        self._inbox.clear()

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        inbox, self._inbox = self._inbox, []
        for action in inbox:
            self.run(action)

    def run(self, action: Callable[[], None]) -> None:
        """Now, or when the pause is over."""
        if self.paused:
            self._inbox.append(action)
        elif self.up:
            action()

    def deliver(self, process: int | None, action: Callable[[], None]) -> None:
        """To that process; None: to any."""
        if self.up and process in (None, self.process):
            self.run(action)
