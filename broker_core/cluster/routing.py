"""Where records for a partition go: to its log where this node leads it alone, else over a route to
the node that leads it, which sends again what a lost link or a failover left open.

Records of one partition are stored in the order in which they were given here, each once.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from lakemq.broker_core.api.backoff import Backoff
from lakemq.broker_core.api.errors import LakeMQError, Unavailable, UnknownTopic
from lakemq.broker_core.api.leadership import check_partition, leadership, leads
from lakemq.broker_core.api.ports import AppendDone, AppendTarget
from lakemq.broker_core.api.records.batch import BatchHeader
from lakemq.broker_core.api.records.outcomes import outcome_of, settle
from lakemq.broker_core.api.state.internal_topics import is_node_own
from lakemq.broker_core.api.types import Acks, AppendResult, Columns, TopicInfo
from lakemq.broker_core.cluster.append_link import AppendLinks
from lakemq.broker_core.cluster.peers import Peers
from lakemq.broker_core.cluster.route_queue import Entry, RouteBatch, RouteQueue, WaitingBytes
from lakemq.broker_core.partitions import Partitions
from lakemq.broker_core.replication.assignments import is_shared

ROUTED_MAX_BYTES: Final = 128 * 1024 * 1024
"""Memory of records that wait for other nodes, of all partitions together; more are refused."""
_ENTRY_BYTES: Final = 400
"""What an append takes beside its records: small ones would cost ten times what they count."""
_RECORD_BYTES: Final = 24
_RETRY_FIRST_MS: Final = 20
_RETRY_MAX_MS: Final = 500
_rng: Final = random.Random()
_log: Final = logging.getLogger(__name__)


class Router:
    """Lives on the event loop."""

    def __init__(
        self,
        node_id: str,
        partitions: Partitions,
        peers: Peers,
        allocate_producer_id: Callable[[], Awaitable[int]],
        ack_wait_s: float,
    ) -> None:
        """`ack_wait_s`: how long a record may wait until it is acknowledged."""
        self.node_id = node_id
        self.partitions = partitions
        self.ack_wait_s = ack_wait_s
        self.waiting = WaitingBytes()
        """Of all routes."""
        self.links = AppendLinks(peers, self._link_is_up, self._link_is_lost)
        self._allocate = allocate_producer_id
        self._routes: dict[tuple[str, int], RoutedLog] = {}
        self._own: dict[tuple[str, int], AppendTarget] = {}
        """Logs that need no route, as long as the catalog says the same: found with one look-up,
        for every batch asks."""
        self._allocating: set[asyncio.Task[None]] = set()

    def target(self, topic: str, partition: int) -> AppendTarget:
        """What takes records for a partition. Raises UnknownTopic, UnknownPartition; NotLeader for
        an internal topic."""
        own = self._own.get((topic, partition))
        if own is not None:
            return own
        info = self.partitions.topic(topic)
        route = self._routes.get((topic, partition))
        # What was given to a route before must be stored before.
        if (route is None or not len(route.queue)) and self._is_own(info, partition):
            log = self._own[topic, partition] = self.partitions.log(topic, partition)
            return log
        if route is None:
            check_partition(info, partition)
            route = self._routes[topic, partition] = RoutedLog(self, info, partition)
        return route

    def _is_own(self, topic: TopicInfo, partition: int) -> bool:
        """Whether records need no route: an internal topic, or this node alone has, and is to have,
        a replica."""
        if is_node_own(topic.name):
            return True
        held = leadership(topic, partition)
        return leads(self.node_id, topic, partition) and not is_shared(held, self.node_id)

    def changed(self, name: str, topic: TopicInfo | None) -> None:
        """A topic has changed in the catalog, None: it was deleted."""
        self._own = {key: log for key, log in self._own.items() if key[0] != name}
        for key, route in list(self._routes.items()):
            if key[0] != name:
                continue
            if topic is None or topic.topic_id != route.topic_id:
                del self._routes[key]
                route.fail(UnknownTopic(f"topic {name!r} does not exist"))
            else:
                route.pump()

    def nodes_changed(self, nodes: set[str]) -> None:
        """These are the nodes of the cluster now."""
        self.links.keep_only(nodes)

    def _link_is_up(self, node: str) -> None:
        for route in list(self._routes.values()):
            if route.leader == node:
                route.pump()

    def _link_is_lost(self, node: str) -> None:
        for route in list(self._routes.values()):
            if route.leader == node:
                route.link_lost()

    def give_producer_id(self, route: RoutedLog) -> None:
        """Allocate an id for a route, which is told when it is there."""
        task = asyncio.get_running_loop().create_task(self._give(route))
        self._allocating.add(task)
        task.add_done_callback(self._allocating.discard)

    async def _give(self, route: RoutedLog) -> None:
        backoff = Backoff(_RETRY_FIRST_MS, _RETRY_MAX_MS, _rng.random)
        while True:
            try:
                number = await self._allocate()
                break
            except LakeMQError as error:
                _log.info("no producer id for %s yet: %s", route.name, error)
            await asyncio.sleep(backoff.next_s())
        route.use(number)

    async def stop(self) -> None:
        """Answer all that waits: the node stops."""
        tasks = list(self._allocating)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        routes, self._routes = self._routes, {}
        for route in routes.values():
            route.fail(Unavailable("this node is stopping"))
        self.links.keep_only(set())


class RoutedLog:
    """Implements `AppendTarget` for one partition of one topic."""

    def __init__(self, router: Router, topic: TopicInfo, partition: int) -> None:
        self.queue = RouteQueue(router.waiting)
        self.topic_id = topic.topic_id
        self.name = f"partition {partition} of {topic.name}"
        self.leader = ""
        """Node that records go to, or went to last."""
        self._router = router
        self._topic = topic.name
        self._partition = partition
        self._epoch = 0
        self._turn = 0
        """Counts up whenever answers to what was sent before do not count any more."""
        self._asks_id = False
        self._pumping = False
        self._backoff = Backoff(_RETRY_FIRST_MS, _RETRY_MAX_MS, _rng.random)
        self._retry: asyncio.TimerHandle | None = None
        self._expiry: asyncio.TimerHandle | None = None

    def topic(self) -> TopicInfo:
        """Raises UnknownTopic."""
        return self._router.partitions.topic(self._topic)

    # -- AppendTarget

    def append(self, batch: bytes, header: BatchHeader, acks: Acks) -> asyncio.Future[AppendResult]:
        """As `AppendTarget.append`. A batch of a producer keeps its numbers."""
        future: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        self._add(acks, partial(settle, future), len(batch), batch=batch, header=header)
        return future

    def append_records(self, columns: Columns, now_ms: int, acks: Acks, done: AppendDone) -> None:
        """As `AppendTarget.append_records`."""
        size = _RECORD_BYTES * len(columns.values)
        for column in (columns.values, columns.keys or (), columns.headers or ()):
            size += sum([len(cell) for cell in column if cell])
        self._add(acks, done, size, columns=columns, now_ms=now_ms)

    def _add(
        self,
        acks: Acks,
        done: AppendDone,
        size_bytes: int,
        *,
        columns: Columns | None = None,
        now_ms: int = 0,
        batch: bytes = b"",
        header: BatchHeader | None = None,
    ) -> None:
        router, loop = self._router, asyncio.get_running_loop()
        size_bytes += _ENTRY_BYTES
        waiting_bytes = router.waiting.size_bytes
        if waiting_bytes and waiting_bytes + size_bytes > ROUTED_MAX_BYTES:
            done(Unavailable(f"{waiting_bytes} bytes wait for other nodes; try again"))
            return
        entry = Entry(
            acks, done, deadline_s=loop.time() + router.ack_wait_s, size_bytes=size_bytes,
            columns=columns, now_ms=now_ms, batch=batch, header=header,
        )  # fmt: skip
        self.queue.add(entry)
        self.pump()

    # -- sending

    def pump(self) -> None:
        """Send what can be sent now."""
        if self._pumping:
            return
        self._pumping = True
        try:
            self._follow_leader()
            self._send_some()
        finally:
            self._pumping = False
        self._arm()

    def _follow_leader(self) -> None:
        """Find out who leads; what went to another leadership is sent again."""
        try:
            topic = self.topic()
        except UnknownTopic:
            return
        lead = leadership(topic, self._partition)
        leader = lead.leader or ""
        if not leader and leads(self._router.node_id, topic, self._partition):
            leader = self._router.node_id
        if (leader, lead.epoch) == (self.leader, self._epoch):
            return
        self.leader, self._epoch = leader, lead.epoch
        self._forget()
        self._cancel_retry()

    def _forget(self) -> None:
        self._turn += 1
        self.queue.lost()

    def _send_some(self) -> None:
        if not self.leader or self._retry is not None or not len(self.queue):
            return
        if self.queue.needs_producer_id:
            if not self._asks_id:
                self._asks_id = True
                self._router.give_producer_id(self)
            return
        own = self.leader == self._router.node_id
        link = None if own else self._router.links.to(self.leader)
        if link is not None and not link.is_up:
            return
        batch_max_bytes = self.topic().config.batch_max_bytes
        while True:
            batch = self.queue.next(batch_max_bytes)
            if batch is None:
                return
            answered = partial(self._answered, self._turn, batch)
            if link is None:
                self._append_here(batch, answered)
            else:
                link.append(
                    self.topic_id, self._partition, self._epoch, batch.acks, batch.data, answered
                )

    def _append_here(
        self, batch: RouteBatch, answered: Callable[[AppendResult | LakeMQError], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        try:
            log = self._router.partitions.log(self._topic, self._partition, self._epoch)
            future = log.append(batch.data, batch.header, batch.acks)
        except LakeMQError as error:
            loop.call_soon(answered, error)
            return

        def tell(done: asyncio.Future[AppendResult]) -> None:
            outcome = outcome_of(done)
            answered(outcome)

        future.add_done_callback(tell)

    def _answered(self, turn: int, batch: RouteBatch, outcome: AppendResult | LakeMQError) -> None:
        if turn != self._turn:
            return
        at_once = self.queue.answered(batch, outcome)
        if at_once:
            if isinstance(outcome, AppendResult):
                self._backoff.reset()
        elif self._retry is None:
            wait_s = self._backoff.next_s()
            self._retry = asyncio.get_running_loop().call_later(wait_s, self._retry_now)
        self.pump()

    def _retry_now(self) -> None:
        self._retry = None
        self.pump()

    def link_lost(self) -> None:
        """What went over the link is sent again when it is up, or by another one."""
        self._forget()
        self.pump()

    def use(self, producer_id: int) -> None:
        """Write as this producer from now on."""
        self._asks_id = False
        self.queue.use(producer_id)
        self.pump()

    # -- time

    def _arm(self) -> None:
        deadline_s = self.queue.deadline_s()
        if deadline_s is not None and self._expiry is None:
            self._expiry = asyncio.get_running_loop().call_at(deadline_s, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        why = f"{self.name} was not acknowledged by {self.leader or 'any leader'} within "
        why += f"{self._router.ack_wait_s:g} s (cluster.ack_wait_ms)"
        self.queue.expire(asyncio.get_running_loop().time(), why)
        self.pump()

    def _cancel_retry(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def fail(self, error: LakeMQError) -> None:
        """Answer all: the topic or the node goes."""
        self._turn += 1
        self._cancel_retry()
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        self.queue.fail(error)
