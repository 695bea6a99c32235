"""The controller: on the Raft leader alone, it keeps the cluster in order.

It decides from the cache and from soft state, and acts only through commands, which check for
themselves whether what they were decided on still holds. So two controllers at once, at a change of
leadership, do no harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from lakemq.meta_service.api.errors import CompareFailed, MetaError
from lakemq.meta_service.api.types import CLUSTER_LEVEL, NodeRegistration
from lakemq.meta_service.catalog.commands import AVOID_MAX, SetFeatureLevel, Tick
from lakemq.meta_service.catalog.control_commands import (
    FENCED,
    ElectLeaders,
    ExpireSessions,
    RetireNode,
    SetNodeState,
)
from lakemq.meta_service.catalog.moves import LEVEL
from lakemq.meta_service.catalog.nodes import decode_node
from lakemq.meta_service.catalog.pages.commands import LeaveNode, PageTopics
from lakemq.meta_service.catalog.pages.whole_topics import settle_topic
from lakemq.meta_service.catalog.results import value_of
from lakemq.meta_service.catalog.tables import (
    NODE_PREFIX,
    PAGING_KEY,
    SESSIONS,
    TOPIC_PREFIX,
    pack,
)
from lakemq.meta_service.catalog.topics import decode_topic
from lakemq.meta_service.control.advice import Advice, advise
from lakemq.meta_service.control.balance import DISK_FIGURE, FULL_RATIO
from lakemq.meta_service.control.failure_detector import FailureDetector, NodeStateChange
from lakemq.meta_service.control.load_history import LoadHistory
from lakemq.meta_service.control.mover import Mover
from lakemq.meta_service.control.partition_counts import PartitionCounts
from lakemq.meta_service.control.partition_sizes import PartitionSizes
from lakemq.meta_service.control.settling import PREFERRED_S, Settling, Stored
from lakemq.meta_service.core.gateway import Gateway

LOG: Final = logging.getLogger(__name__)
STEP_S: Final = 0.1
TOPICS_AT_ONCE: Final = 200
CLOCK_S: Final = 60.0
"""How often time is brought into the catalog, if anything there ends by it."""
SESSION_IDLE_MS: Final = 30 * 60 * 1000
"""Time without a command after which a client loses its session."""
STALL_S: Final = 1.0
PAGING_PARTITIONS: Final = 1000
"""Partitions of earlier levels that one command moves to pages."""
_PAGED: Final = pack(None)


class Controller:
    """Runs in the event loop of every member, and acts while its member is the Raft leader."""

    def __init__(
        self,
        gateway: Gateway,
        stored: Stored,
        feature_levels: Callable[[], tuple[int, int]],
        now_s: Callable[[], float] = time.monotonic,
        replace_after_s: float = 0.0,
        member_id: str = "",
    ) -> None:
        """`feature_levels()`: (the cluster's, the highest that all members know).
        `replace_after_s`: time after which the replicas of a dead node are placed elsewhere; 0:
        never. `member_id`: of its member."""
        self.failure_detector = FailureDetector(member_id)
        self.sizes = PartitionSizes(gateway)
        self.mover = Mover(gateway, self.failure_detector.loads, self.sizes.sizes, replace_after_s)
        self.history = LoadHistory()
        self.partition_counts = PartitionCounts(gateway)
        self._settling = Settling(gateway, stored, self.full_nodes)
        self._gateway = gateway
        self._stored = stored
        self._feature_levels = feature_levels
        self._now_s = now_s
        self._leading_term: int | None = None
        self._settled_revision = -1
        self._settled_preferred = -1
        self._nodes_changed_s = 0.0
        self._clock_s = float("-inf")
        self._stepped_s = now_s()
        self._wanted = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []
        self._entering: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_active(self) -> bool:
        """Whether this member leads and its cache has caught up with its leadership."""
        return self._leading_term is not None

    async def start(self) -> None:
        """A leader has done its first step when this returns."""
        # No leader yet, or another: `_run` tries again.
        with contextlib.suppress(MetaError):
            await self.step()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop deciding; a command that was proposed may still be applied."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            self._wanted.clear()
            waiting, self._waiting = self._waiting, []
            try:
                await self.step()
            except MetaError as error:
                LOG.debug("the controller will try again: %s", error)
            for each in waiting:
                if not each.done():
                    each.set_result(None)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STEP_S):
                    await self._wanted.wait()

    def wake(self) -> None:
        """Take the next step now: something has come that others wait for."""
        self._wanted.set()

    async def stepped(self, wait_s: float) -> None:
        """Wait for a whole step that begins now or later; not longer than `wait_s`."""
        done = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        self.wake()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await done

    # ------------------------------------------------------------ one step

    async def step(self) -> None:
        """Look once and act on what is amiss. Raises MetaError; the next step goes on."""
        if not await self._lead():
            return
        await self._raise_feature_level()
        nodes = self._nodes()
        now_s = self._now_s()
        if now_s - self._stepped_s > STALL_S:
            self.failure_detector.restart(now_s)  # this process stood still: silence proves nothing
        self._stepped_s = now_s
        if self.feature_level >= CLUSTER_LEVEL:
            await self._settle_pages(nodes, now_s)
        else:
            for change in self.failure_detector.state_changes(nodes, now_s):
                await self._carry_out(change)
            await self._settle_partitions(now_s)
        self.history.note(self.failure_detector.loads(), now_s)
        await self.mover.step(now_s)
        await self._keep_time(now_s)

    async def _settle_pages(self, nodes: Sequence[NodeRegistration], now_s: float) -> None:
        if self._stored.get(PAGING_KEY) != _PAGED:
            while not value_of(await self._gateway.propose(PageTopics(PAGING_PARTITIONS))):
                pass
        # First what registrations have ended, so that those nodes can come in.
        await self._settling.step(now_s)
        changes = self.failure_detector.state_changes(nodes, now_s)
        try:
            for change in changes:
                await self._admit_or_fence(change)
            if changes:
                await self._settling.step(now_s)
        finally:
            self._entering.clear()

    async def _admit_or_fence(self, change: NodeStateChange) -> None:
        """A node may be refused: what it led, or has lost, is not taken away yet."""
        if change.state != FENCED:
            self._entering.add(change.node_id)
        try:
            await self._carry_out(change)
        except CompareFailed as error:
            LOG.debug("node %s stays as it is: %s", change.node_id, error)

    def shown_state(self, node: NodeRegistration) -> str:
        """What a node is told: active only when it has got what it shall lead."""
        return FENCED if node.node_id in self._entering else node.state

    async def _lead(self) -> bool:
        """Whether this member leads and its cache holds all that was acknowledged."""
        term = self._gateway.leading_term()
        if term is None:
            self._leading_term = None
            return False
        if term != self._leading_term:
            # Before anything is decided: commands of the former leader may not be applied here yet.
            await self._gateway.barrier()
            now_s = self._now_s()
            self.failure_detector.restart(now_s)
            self.mover.restart()
            self._settling.restart(now_s)
            self.history.restart()
            self.sizes.restart()
            self._settled_revision = self._settled_preferred = -1
            self._nodes_changed_s = now_s
            self._leading_term = term
        return True

    async def _raise_feature_level(self) -> None:
        """Allow new commands as soon as every member can apply them, and not before."""
        level, known = self._feature_levels()
        if level < known:
            LOG.info("every member knows feature level %d: raised from %d", known, level)
            value_of(await self._gateway.propose(SetFeatureLevel(known)))

    def _nodes(self) -> list[NodeRegistration]:
        rows = self._gateway.cache.scan(NODE_PREFIX)
        return [decode_node(key, row.value) for key, row in rows]

    def advice(self) -> Advice:
        """Whether the cluster needs other nodes, as far as this leader has seen."""
        rows = self._gateway.cache.scan(TOPIC_PREFIX)
        topics = (decode_topic(key, row.value, row.mod_revision) for key, row in rows)
        wanted = max((topic.replication for topic in topics), default=1)
        return advise(self._nodes(), self.history, wanted)

    def full_nodes(self) -> tuple[str, ...]:
        """Nodes whose heartbeats say that their disk is full; none while members are too old to
        be told."""
        if self._feature_levels()[0] < LEVEL:
            return ()
        loads = self.failure_detector.loads()
        full = {name for name, load in loads.items() if load.get(DISK_FIGURE, 0.0) >= FULL_RATIO}
        full |= self.failure_detector.full()
        return tuple(sorted(full)[:AVOID_MAX])

    @property
    def feature_level(self) -> int:
        """The cluster's."""
        return self._feature_levels()[0]

    async def fence(self, node: NodeRegistration) -> None:
        """The node says that it stops. Raises CompareFailed when it has registered again."""
        # Else its last heartbeat would make it active again at once.
        self.failure_detector.leave(node.node_id)
        if self.feature_level >= CLUSTER_LEVEL:
            if not await self._retire(node.node_id, node.broker_epoch):
                LOG.info("node %s (broker epoch %d) leaves", node.node_id, node.broker_epoch)
                command = LeaveNode(node.node_id, node.broker_epoch)
                value_of(await self._gateway.propose(command))
            self.wake()
            return
        await self._carry_out(NodeStateChange(node.node_id, node.broker_epoch, FENCED))

    async def _carry_out(self, change: NodeStateChange) -> None:
        node_id, epoch, state = change
        if state == FENCED and self.feature_level >= LEVEL and await self._retire(node_id, epoch):
            return
        LOG.info("node %s (broker epoch %d) becomes %s", node_id, epoch, state)
        value_of(await self._gateway.propose(SetNodeState(node_id, epoch, state)))

    async def _retire(self, node_id: str, epoch: int) -> bool:
        """Whether the node had drained and holds nothing any more: it has gone for good."""
        if (await self._gateway.propose(RetireNode(node_id, epoch))).code:
            return False
        LOG.info("node %s (broker epoch %d) has drained and is removed", node_id, epoch)
        return True

    async def _settle_partitions(self, now_s: float) -> None:
        """Leaders and in-sync sets follow the nodes' states, below level 4."""
        revision = self._node_revision()
        if revision != self._settled_revision:
            await self._elect(preferred=False)
            # Noted behind the election: if that fails, the next step tries again.
            self._settled_revision = revision
            self._nodes_changed_s = now_s
        elif revision != self._settled_preferred and now_s - self._nodes_changed_s > PREFERRED_S:
            await self._elect(preferred=True)
            self._settled_preferred = revision

    def _node_revision(self) -> int:
        """Newest change of any node, or the number of nodes where one was removed."""
        rows = [row for _, row in self._gateway.cache.scan(NODE_PREFIX)]
        return max((row.mod_revision for row in rows), default=0) * 10_000 + len(rows)

    async def _elect(self, *, preferred: bool) -> None:
        states = {node.node_id: node.state for node in self._nodes()}
        # Only topics that need it go into commands: an idle cluster writes nothing to its log.
        amiss = []
        for number, (key, row) in enumerate(list(self._gateway.cache.scan(TOPIC_PREFIX))):
            topic = decode_topic(key, row.value, row.mod_revision)
            level = self._feature_levels()[0]
            if settle_topic(topic, states, preferred=preferred, level=level) is not topic:
                amiss.append(topic.name)
            # Thousands of topics: heartbeats of nodes are taken in the same event loop.
            if number % 1000 == 999:
                await asyncio.sleep(0)
        # In several commands, so that none keeps the Raft thread for long.
        for start in range(0, len(amiss), TOPICS_AT_ONCE):
            await self._elect_in(amiss[start : start + TOPICS_AT_ONCE], preferred)

    async def _elect_in(self, names: Sequence[str], preferred: bool) -> None:
        value_of(await self._gateway.propose(ElectLeaders(tuple(names), preferred)))

    async def _keep_time(self, now_s: float) -> None:
        """Bring the time into the catalog, and expire the sessions of clients that are gone."""
        if now_s - self._clock_s < CLOCK_S or not self._stored.first(SESSIONS, 1):
            return
        self._clock_s = now_s
        # Time comes through the log: members that read their own clocks would expire different
        # sessions.
        value_of(await self._gateway.propose(Tick(time.time_ns() // 1_000_000)))
        await self._gateway.propose(ExpireSessions(SESSION_IDLE_MS, 200))
