"""What the controller of a simulation learns of processes that die: ends of heartbeat streams, and
witnesses that are refused connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from lakemq.meta_service.control.dead_processes import DeadProcesses
from tests.support.replication.broker import Broker
from tests.support.replication.world import CONTROLLER, World

LOOK_S = 2.0
_LOOK_EVERY_S = 0.1


class Cluster(Protocol):
    """Who may die, and who may see it."""

    world: World
    brokers: dict[str, Broker]


class Deaths:
    """The real `DeadProcesses`, fed as gRPC and the brokers' `Refusals` feed it."""

    def __init__(self, cluster: Cluster) -> None:
        self.processes = DeadProcesses()
        self._cluster = cluster
        self._world = cluster.world
        self._ended: set[object] = set()
        self._lies: dict[str, float] = {}
        """Node -> time until which others are refused at its address though it lives."""

    def heard(self, name: str, broker_epoch: int, stream: object) -> bool:
        """Whether a heartbeat that arrives is of a stream that has not ended: TCP brings nothing
        behind an end."""
        if stream in self._ended:
            return False
        self.processes.stream_used(name, broker_epoch, stream)
        return True

    def crashed(self, broker: Broker) -> None:
        """Its host ends its connections; those that had one look whether the process is gone."""
        self._world.send(broker.name, CONTROLLER, self._end_of_stream(broker))
        self._others_look(broker)

    def reset(self, broker: Broker) -> None:
        """Something on the way resets its heartbeat stream: both ends are told."""
        self._world.at(self._world.rng.uniform(0.0005, 0.005), self._end_of_stream(broker))
        broker.stream_broke()

    def lie(self, broker: Broker, seconds: float) -> None:
        """Something on the way refuses connections in its name."""
        self._lies[broker.name] = self._world.now_s + seconds
        self._others_look(broker)

    def _end_of_stream(self, broker: Broker) -> Callable[[], None]:
        name, epoch, stream = broker.name, broker.broker_epoch, broker.stream

        def told() -> None:
            self._ended.add(stream)
            self.processes.stream_ended(name, epoch, stream, self._world.now_s)

        return told

    def _others_look(self, broker: Broker) -> None:
        for witness in self._cluster.brokers.values():
            if witness is not broker and witness.up:
                until_s = self._world.now_s + LOOK_S
                self._look(witness, broker, broker.broker_epoch, until_s)

    def _look(self, witness: Broker, broker: Broker, epoch: int, until_s: float) -> None:
        world = self._world
        if not witness.up or world.now_s > until_s:
            return
        links = {(witness.name, broker.name), (broker.name, witness.name)}
        if not witness.paused and not links & world.cut and self._refuses(broker):
            world.send(
                witness.name,
                CONTROLLER,
                lambda: self.processes.refused(witness.name, broker.name, epoch, world.now_s),
            )
        world.at(_LOOK_EVERY_S, lambda: self._look(witness, broker, epoch, until_s))

    def _refuses(self, broker: Broker) -> bool:
        # A process that stands still is connected to by its host.
        lied = self._world.now_s < self._lies.get(broker.name, 0.0) and not broker.paused
        return not broker.up or lied
