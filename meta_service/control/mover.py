"""Carries out what `balance` plans: on the Raft leader alone, a few partitions at a time.

What is wanted lies in the catalog, and the plan follows from what is there; so a new leader
goes on where the old one stopped, and a node that fails meanwhile is taken into account.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from lakemq.meta_service.api.types import (
    NodeRegistration,
    PartitionDescription,
    TopicDescription,
)
from lakemq.meta_service.catalog.control_commands import ACTIVE, FENCED, TOPICS_MAX
from lakemq.meta_service.catalog.moves import (
    REBALANCE_KEY,
    FinishMoves,
    SetRebalance,
    StartMoves,
    decode_rebalance,
    end_move,
)
from lakemq.meta_service.catalog.nodes import decode_node
from lakemq.meta_service.catalog.pages.commands import CHANGES_MAX, FinishMovesInPages
from lakemq.meta_service.catalog.pages.rows import decode_page
from lakemq.meta_service.catalog.results import value_of
from lakemq.meta_service.catalog.tables import NODE_PREFIX, PAGE_PREFIX, TOPIC_PREFIX, Row
from lakemq.meta_service.catalog.topics import decode_topic, topic_key
from lakemq.meta_service.control.balance import (
    Loads,
    PlannedMove,
    Sizes,
    cheapest_first,
    plan,
    repair,
    wants_repair,
)
from lakemq.meta_service.control.newcomers import newcomers
from lakemq.meta_service.core.gateway import Gateway
from lakemq.meta_service.core.topics import PREFIXES, topic_of_rows

LOG: Final = logging.getLogger(__name__)
PLAN_S: Final = 1.0
"""A plan is made at most this often."""
REPAIRS_AT_ONCE: Final = 20
"""Partitions under way while no rebalance was asked for."""
WELCOME_S: Final = 60.0
"""Time in which a node that has joined is given partitions that are nearly empty: leaders tell
sizes by turns, and replicas that topics want come first."""
WELCOME_AFTER_S: Final = 6.0
"""A node that joins waits so long for the first of them, and again under a new Raft leader: leaders
tell all sizes within 5 s, unless they lead thousands, and a plan that knew of some topics alone
would move no others."""
EMPTY_BYTES: Final = 1 << 20
"""A partition of this size is copied in no time: it is placed as if it were new."""


class _Found(NamedTuple):
    """Partitions of one row: of a topic below level 4, of a page from then on."""

    topic: str
    partitions: tuple[PartitionDescription, ...]


def _is_amiss(topic: TopicDescription, found: _Found) -> bool:
    return any(wants_repair(topic, partition, set()) for partition in found.partitions)


class Mover:
    """Part of the controller. Lives in the event loop."""

    def __init__(
        self,
        gateway: Gateway,
        loads: Callable[[], Loads],
        sizes: Callable[[], Sizes],
        replace_after_s: float = 0.0,
    ) -> None:
        """`sizes()`: of partitions, as far as they are known. `replace_after_s`: time after which
        replicas of a dead node are placed elsewhere; 0: never."""
        self._gateway = gateway
        self._loads = loads
        self._sizes = sizes
        self._replace_after_s = replace_after_s
        self._changed: set[bytes] = set()
        self._moving: dict[bytes, _Found] = {}
        self._amiss: set[bytes] = set()
        """Rows with partitions that have not as many replicas as their topic wants."""
        self._fenced_s: dict[tuple[str, int], float] = {}
        self._repaired: object = None
        self._planned_s = float("-inf")
        self._joined: dict[str, float] = {}
        """Nodes that joined lately -> when this leader heard of it."""
        self._welcomed: object = None
        gateway.listeners.append(self._note)

    def _note(self, rows: Sequence[tuple[bytes, Row | None]]) -> None:
        self._changed.update(key for key, _ in rows if key.startswith(PREFIXES))

    def restart(self) -> None:
        """This member has become the leader: look at everything once."""
        cache = self._gateway.cache
        self._changed = {key for prefix in PREFIXES for key, _ in cache.scan(prefix)}
        self._moving.clear()
        self._amiss.clear()
        self._fenced_s.clear()
        self._joined.clear()
        self._repaired = self._welcomed = None
        self._planned_s = float("-inf")

    def moving(self) -> int:
        """Partitions under way."""
        self._look()
        return sum(bool(p.target) for found in self._moving.values() for p in found.partitions)

    def wanted(self) -> tuple[tuple[str, ...], int] | None:
        """(nodes that shall hold no replicas, moves at once); None: nothing shall move."""
        row = self._gateway.cache.get(REBALANCE_KEY)
        return decode_rebalance(row.value) if row is not None else None

    def nodes(self) -> list[NodeRegistration]:
        """All registered nodes, from the cache."""
        rows = self._gateway.cache.scan(NODE_PREFIX)
        return [decode_node(key, row.value) for key, row in rows]

    async def plan(
        self, leaving: Sequence[str] = (), size_max_bytes: int | None = None
    ) -> list[PlannedMove]:
        """What a rebalance would move now. `size_max_bytes`: if larger partitions stayed."""
        rows, pages = self._rows()
        nodes, loads, sizes = self.nodes(), self._loads(), self._sizes()

        def made() -> list[PlannedMove]:  # in a thread: thousands of topics take a while
            topics = [topic_of_rows(key, row, pages) for key, row in rows]
            return plan(topics, nodes, leaving, loads, sizes, size_max_bytes)

        return await asyncio.to_thread(made)

    def _rows(self) -> tuple[list[tuple[bytes, Row]], dict[bytes, Row]]:
        cache = self._gateway.cache
        return list(cache.scan(TOPIC_PREFIX)), dict(cache.scan(PAGE_PREFIX))

    async def step(self, now_s: float) -> None:
        """End what has arrived, then begin as many moves as there is room for; raises MetaError."""
        self._look()
        await self._finish()
        wanted = self.wanted()
        dead = self._dead(now_s)
        if now_s - self._planned_s < PLAN_S:
            return
        if wanted is not None:
            self._planned_s = now_s
            leaving, at_once = wanted
            room = at_once - self.moving()
            if room > 0:
                await self._begin(await self.plan((*leaving, *dead)), room, ends=True)
        elif self._greet(now_s) or self._amiss or dead:
            self._planned_s = now_s
            if not ((self._amiss or dead) and await self._repair(dead)):
                await self._welcome(now_s)

    def _dead(self, now_s: float) -> tuple[str, ...]:
        """Nodes that have been fenced for so long, as far as this leader knows, that others shall
        take over their replicas."""
        fenced = {(n.node_id, n.broker_epoch) for n in self.nodes() if n.state == FENCED}
        self._fenced_s = {each: self._fenced_s.get(each, now_s) for each in fenced}
        if not self._replace_after_s:
            return ()
        since = now_s - self._replace_after_s
        return tuple(sorted(n for (n, _), begun_s in self._fenced_s.items() if begun_s <= since))

    def _look(self) -> None:
        """Keep `_moving` and `_amiss` in line with the rows that have changed."""
        changed, self._changed = self._changed, set()
        for key in changed:
            row = self._gateway.cache.get(key)
            self._moving.pop(key, None)
            self._amiss.discard(key)
            if row is None:
                continue
            found, topic = self._found(key, row)
            if any(partition.target for partition in found.partitions):
                self._moving[key] = found
            if key.startswith(PAGE_PREFIX) and topic is not None and _is_amiss(topic, found):
                self._amiss.add(key)
            if key.startswith(TOPIC_PREFIX) and not found.partitions and topic is not None:
                self._look_at_pages(topic)

    def _look_at_pages(self, topic: TopicDescription) -> None:
        """Its own row has changed: perhaps how many replicas its partitions shall have."""
        prefix = PAGE_PREFIX + bytes.fromhex(topic.topic_id)
        for key, row in self._gateway.cache.scan(prefix):
            page = decode_page(key[len(PAGE_PREFIX) :], row.value)
            if _is_amiss(topic, _Found(page.topic, page.partitions)):
                self._amiss.add(key)
            else:
                self._amiss.discard(key)

    def _found(self, key: bytes, row: Row) -> tuple[_Found, TopicDescription | None]:
        """(partitions of a row, their topic; None: not known here)."""
        if key.startswith(TOPIC_PREFIX):
            topic = decode_topic(key, row.value, row.mod_revision)
            return _Found(topic.name, topic.partitions), topic
        page = decode_page(key[len(PAGE_PREFIX) :], row.value)
        head = self._gateway.cache.get(topic_key(page.topic))
        known = decode_topic(topic_key(page.topic), head.value, 0) if head is not None else None
        return _Found(page.topic, page.partitions), known

    async def _finish(self) -> None:
        if not self._moving:
            return
        states = {node.node_id: node.state for node in self.nodes()}
        ready = [
            (key, found.topic)
            for key, found in self._moving.items()
            if any(end_move(p, states) is not p for p in found.partitions)
        ]
        pages = tuple(key[len(PAGE_PREFIX) :] for key, _ in ready if key.startswith(PAGE_PREFIX))
        topics = tuple(topic for key, topic in ready if key.startswith(TOPIC_PREFIX))
        done: list[object] = []
        if pages:
            command = FinishMovesInPages(pages[:CHANGES_MAX])
            done += value_of(await self._gateway.propose(command))
        if topics:
            done += value_of(await self._gateway.propose(FinishMoves(topics[:TOPICS_MAX])))
        if done:
            LOG.info("%d partitions have moved", len(done))

    def _greet(self, now_s: float) -> bool:
        """Whether any node has joined so lately that it is given its share."""
        rows = self._gateway.cache.scan(NODE_PREFIX)
        nodes = ((decode_node(key, row.value), row.create_revision) for key, row in rows)
        found = newcomers(nodes, self._loads(), WELCOME_S)
        for name in found:
            self._joined.setdefault(name, now_s)
        self._joined = {
            name: heard_s
            for name, heard_s in self._joined.items()
            if name in found or now_s - heard_s < WELCOME_S
        }
        return bool(self._joined)

    async def _welcome(self, now_s: float) -> None:
        """Give nodes that have just joined their share of what is nearly empty: topics that the
        first node of a cluster made at its start would else stay there as a whole."""
        newest_s = max(self._joined.values(), default=now_s)
        if now_s - newest_s < WELCOME_AFTER_S:
            return
        active = [node.node_id for node in self.nodes() if node.state == ACTIVE]
        now = (active, self._gateway.cache.revision, len(self._sizes()))
        room = REPAIRS_AT_ONCE - self.moving()
        if now == self._welcomed or room <= 0:
            return
        moves = await self.plan(size_max_bytes=EMPTY_BYTES)
        self._welcomed = now if not moves else None
        await self._begin(moves, room, ends=False)

    async def _repair(self, dead: tuple[str, ...]) -> bool:
        """Give partitions the replicas that their topics want, where nodes are there for them;
        whether any move began."""
        nodes, loads = self.nodes(), self._loads()
        # Where the last look found nothing to do, the next one does not either until something is
        # different.
        states = [(node.node_id, node.state) for node in nodes]
        now = (dead, states, self._gateway.cache.revision if self._moving else len(self._amiss))
        room = REPAIRS_AT_ONCE - self.moving()
        if now == self._repaired or room <= 0:
            return False
        rows, pages = self._rows()

        def made() -> list[PlannedMove]:
            topics = [topic_of_rows(key, row, pages) for key, row in rows]
            gone = set(dead)
            amiss = [
                topic
                for topic in topics
                if any(wants_repair(topic, p, gone) for p in topic.partitions)
            ]
            return repair(amiss, nodes, dead, loads)

        moves = await asyncio.to_thread(made)
        self._repaired = now if not moves else None
        await self._begin(moves, room, ends=False)
        return bool(moves)

    async def _begin(self, moves: list[PlannedMove], room: int, *, ends: bool) -> None:
        """`ends`: a rebalance is over when there is nothing left to move."""
        if ends and not moves and not self._moving:
            LOG.info("rebalance complete")
            value_of(await self._gateway.propose(SetRebalance(False, (), 1)))
            return
        begun = tuple(
            (move.topic, move.topic_id, move.partition, move.partition_epoch, move.target)
            for move in cheapest_first(moves, self._sizes())[: min(room, TOPICS_MAX)]
        )
        if begun:
            LOG.info("%d of %d partitions begin to move", len(begun), len(moves))
            value_of(await self._gateway.propose(StartMoves(begun)))
