"""Carries out what `catalog.balance` plans: on the Raft leader alone, a few partitions at a time.

What is wanted lies in the catalog, and the plan follows from what is there; so a new leader
goes on where the old one stopped, and a node that fails meanwhile is taken into account.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from lakemq.meta_service.api.types import NodeRegistration, TopicDescription
from lakemq.meta_service.catalog.control_commands import TOPICS_MAX
from lakemq.meta_service.catalog.moves import (
    REBALANCE_KEY,
    FinishMoves,
    SetRebalance,
    StartMoves,
    decode_rebalance,
    end_move,
)
from lakemq.meta_service.catalog.nodes import decode_node
from lakemq.meta_service.catalog.results import value_of
from lakemq.meta_service.catalog.tables import NODE_PREFIX, TOPIC_PREFIX, Row
from lakemq.meta_service.catalog.topics import decode_topic
from lakemq.meta_service.control.balance import Loads, PlannedMove, plan
from lakemq.meta_service.core.gateway import Gateway

LOG: Final = logging.getLogger(__name__)
PLAN_S: Final = 1.0
"""A plan is made at most this often."""


class Mover:
    """Part of the controller. Lives in the event loop."""

    def __init__(self, gateway: Gateway, loads: Callable[[], Loads]) -> None:
        self._gateway = gateway
        self._loads = loads
        self._changed: set[bytes] = set()
        self._moving: dict[bytes, TopicDescription] = {}
        self._planned_s = float("-inf")
        gateway.listeners.append(self._note)

    def _note(self, rows: Sequence[tuple[bytes, Row | None]]) -> None:
        self._changed.update(key for key, _ in rows if key.startswith(TOPIC_PREFIX))

    def restart(self) -> None:
        """This member has become the leader: look at everything once."""
        self._changed = {key for key, _ in self._gateway.cache.scan(TOPIC_PREFIX)}
        self._moving.clear()
        self._planned_s = float("-inf")

    def moving(self) -> int:
        """Partitions under way."""
        self._look()
        return sum(bool(p.target) for topic in self._moving.values() for p in topic.partitions)

    def wanted(self) -> tuple[tuple[str, ...], int] | None:
        """(nodes that shall hold no replicas, moves at once); None: nothing shall move."""
        row = self._gateway.cache.get(REBALANCE_KEY)
        return decode_rebalance(row.value) if row is not None else None

    def nodes(self) -> list[NodeRegistration]:
        """All registered nodes, from the cache."""
        rows = self._gateway.cache.scan(NODE_PREFIX)
        return [decode_node(key, row.value) for key, row in rows]

    async def plan(self, leaving: Sequence[str] = ()) -> list[PlannedMove]:
        """What would be moved now."""
        rows = list(self._gateway.cache.scan(TOPIC_PREFIX))
        nodes, loads = self.nodes(), self._loads()

        def made() -> list[PlannedMove]:  # in a thread: thousands of topics take a while
            topics = [decode_topic(key, row.value, row.mod_revision) for key, row in rows]
            return plan(topics, nodes, leaving, loads)

        return await asyncio.to_thread(made)

    async def step(self, now_s: float) -> None:
        """End what has arrived, then begin as many moves as there is room for; raises MetaError."""
        self._look()
        await self._finish()
        wanted = self.wanted()
        if wanted is None or now_s - self._planned_s < PLAN_S:
            return
        self._planned_s = now_s
        leaving, at_once = wanted
        room = at_once - self.moving()
        if room > 0:
            await self._begin(await self.plan(leaving), room)

    def _look(self) -> None:
        """Keep `_moving` in line with the topics that have changed."""
        changed, self._changed = self._changed, set()
        for key in changed:
            row = self._gateway.cache.get(key)
            self._moving.pop(key, None)
            if row is not None:
                topic = decode_topic(key, row.value, row.mod_revision)
                if any(partition.target for partition in topic.partitions):
                    self._moving[key] = topic

    async def _finish(self) -> None:
        if not self._moving:
            return
        states = {node.node_id: node.state for node in self.nodes()}
        ready = [
            topic.name
            for topic in self._moving.values()
            if any(end_move(p, states) is not p for p in topic.partitions)
        ]
        if ready:
            done = value_of(await self._gateway.propose(FinishMoves(tuple(ready[:TOPICS_MAX]))))
            LOG.info("%d partitions have moved", len(done))

    async def _begin(self, moves: list[PlannedMove], room: int) -> None:
        if not moves and not self._moving:
            LOG.info("rebalance complete")
            value_of(await self._gateway.propose(SetRebalance(False, (), 1)))
            return
        begun = tuple(
            (move.topic, move.topic_id, move.partition, move.partition_epoch, move.target)
            for move in moves[: min(room, TOPICS_MAX)]
        )
        if begun:
            LOG.info("%d of %d partitions begin to move", len(begun), len(moves))
            value_of(await self._gateway.propose(StartMoves(begun)))
