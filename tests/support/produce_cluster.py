"""What a `Producer` sees of a cluster, without sockets: nodes that lead partitions, and streams
that break, as one random generator decides. Producers are told apart by the journal's own table.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, Self

from lakemq.broker_core.api.errors import (
    InvalidRequest,
    LakeMQError,
    NotAuthorized,
    NotEnoughReplicas,
    NotLeader,
    Unavailable,
)
from lakemq.broker_core.api.records.batch import BatchHeader, RecordBatch, read_header
from lakemq.plugins.journal.segment.producers import ProducerTable
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.sdk.net.cluster_view import ClusterView
from lakemq.plugins.native.sdk.notices import Notices
from lakemq.plugins.native.server.convert import error_message

NODES = ("a:1", "b:1", "c:1")
TOPIC = "t"
BAD = b"bad"
"""A batch that has a value which begins so is refused for good."""
_Outcome = asyncio.Future[int] | LakeMQError


class Partition:
    """The log of a leader; what is not committed may be lost with it."""

    def __init__(self, dice: random.Random) -> None:
        self.leader, self.epoch = NODES[0], 1
        self.log: list[tuple[BatchHeader, list[bytes | None]]] = []
        self.committed = 0
        self.end = 0
        self.table = ProducerTable()
        self.refuses = 0.0
        """How likely a batch is refused for now."""
        self.forbids = 0.0
        """How likely it is refused for good, stored or not, as when rights were taken away."""
        self._dice = dice
        self._waiting: list[tuple[int, asyncio.Future[int]]] = []

    def append(self, node: str, data: bytes) -> _Outcome:
        if node != self.leader:
            return NotLeader("no", leader=self.leader, address=self.leader, epoch=self.epoch)
        if self._dice.random() < self.refuses:
            return self._dice.choice((Unavailable("busy"), NotEnoughReplicas("few")))
        if self._dice.random() < self.forbids:
            return NotAuthorized("not any more")
        values = RecordBatch(data).values()
        if any(value is not None and value.startswith(BAD) for value in values):
            return InvalidRequest("a bad value")
        header = read_header(data)
        try:
            known = self.table.check(header)
        except LakeMQError as error:
            return error
        if known is None:
            header = header._replace(base_offset=self.end)
            self.end += len(values)
            self.table.note(header, 0)
            self.log.append((header, values))
        base = header.base_offset if known is None else known.base_offset
        outcome: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append((base, outcome))
        asyncio.get_running_loop().call_later(self._dice.uniform(0.001, 0.02), self._commit)
        return outcome

    def _commit(self) -> None:
        self.committed = len(self.log)
        waiting, self._waiting = self._waiting, []
        for base, outcome in waiting:
            if not outcome.done():  # its stream is gone
                outcome.set_result(base)

    def move(self) -> None:
        """Another node leads, with what it has of the log; who waits is told nothing of its
        batch."""
        self.leader, self.epoch = self._dice.choice(NODES), self.epoch + 1
        del self.log[self._dice.randint(self.committed, len(self.log)) :]
        self.end = self.log[-1][0].last_offset + 1 if self.log else 0
        self.table = ProducerTable()
        for header, _ in self.log:
            self.table.note(header, 0)
        waiting, self._waiting = self._waiting, []
        for _, outcome in waiting:
            if not outcome.done():
                outcome.set_exception(NotLeader("no more"))
                outcome.exception()  # nobody may wait for it any more

    def stored(self) -> list[tuple[int, str]]:
        return [
            (header.base_offset + n, (value or b"").decode())
            for header, values in self.log
            for n, value in enumerate(values)
        ]


class Stream:
    """One Produce call: requests and answers take time, keep their order, and are lost when it
    breaks. What is on its way to the node then may still come in."""

    def __init__(self, cluster: Cluster, node: str, requests: AsyncIterator[Any]) -> None:
        self._cluster, self.node = cluster, node
        self._loop = asyncio.get_running_loop()
        self._answers: asyncio.Queue[pb.ProduceResponse | LakeMQError] = asyncio.Queue()
        self._window: asyncio.Queue[tuple[int, _Outcome]] = asyncio.Queue()
        self._arrives_s = 0.0
        self._deaf = False
        self._tasks = [
            self._loop.create_task(self._pull(requests)),
            self._loop.create_task(self._reply()),
        ]
        self.broken = False

    async def _pull(self, requests: AsyncIterator[Any]) -> None:
        async for request in requests:
            delay_s = self._cluster.dice.expovariate(300)
            # Never the same: timers of one moment run in any order.
            self._arrives_s = max(self._arrives_s + 1e-6, self._loop.time() + delay_s)
            self._loop.call_at(self._arrives_s, self._arrive, request)
            await asyncio.sleep(0)

    def _arrive(self, request: pb.ProduceRequest) -> None:
        # Once one is lost, so is all that was sent behind it.
        self._deaf |= self.broken and self._cluster.dice.random() < 0.5
        if not self._deaf:
            outcome = self._cluster.partitions[request.partition].append(self.node, request.batch)
            self._window.put_nowait((request.request_id, outcome))

    async def _reply(self) -> None:
        while True:
            request_id, outcome = await self._window.get()
            try:
                if isinstance(outcome, LakeMQError):
                    raise outcome
                answer = pb.ProduceResponse(request_id=request_id, base_offset=await outcome)
            except LakeMQError as error:
                answer = pb.ProduceResponse(request_id=request_id, error=error_message(error))
            await asyncio.sleep(self._cluster.dice.expovariate(2000))
            self._answers.put_nowait(answer)

    def end(self, error: LakeMQError) -> None:
        if not self.broken:
            self.cancel()
            self._answers.put_nowait(error)

    def cancel(self) -> None:
        self.broken = True
        self._cluster.streams.discard(self)
        for task in self._tasks:
            task.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pb.ProduceResponse:
        answer = await self._answers.get()
        if isinstance(answer, LakeMQError):
            raise answer
        return answer


class Cluster:
    """Stands for `Connection` and its `Routes`."""

    bootstrap = "sim"

    def __init__(self, dice: random.Random, partitions: int) -> None:
        self.dice = dice
        self.partitions = [Partition(dice) for _ in range(partitions)]
        self.streams: set[Stream] = set()
        self.routes = self
        self.notices = Notices()
        self.telemetry = None
        self.view = ClusterView()
        self.view.set_nodes({node: node for node in NODES})
        self.route = self.view.route
        self.learn = self.view.learn
        self._watchers: list[Callable[[], None]] = []
        self.tell()

    def tell(self) -> None:
        """Metadata comes to the client."""
        self.view.set_topic(TOPIC, [(each.leader, each.epoch) for each in self.partitions])
        for watcher in self._watchers:
            watcher()

    def hurt(self) -> None:
        """One thing goes wrong."""
        dice = self.dice
        partition = dice.choice(self.partitions)
        partition.refuses = dice.choice((0.0, 0.0, 0.3))
        partition.forbids = dice.choice((0.0, 0.0, 0.2))
        kind = dice.randrange(4)
        if kind < 2:
            partition.move()
        if kind in (1, 2):
            self.tell()
        if kind > 1:
            for stream in sorted(self.streams, key=lambda each: each.node):
                if dice.random() < 0.5:
                    stream.end(Unavailable("broken"))

    # -- as `Routes` and `Connection` have it

    def start(self) -> None:
        pass

    def watch(self, on_change: Callable[[], None]) -> None:
        self._watchers.append(on_change)

    def may_lag(self, error: LakeMQError, topic: str, address: str) -> bool:
        return False

    def stub(self, address: str) -> Any:
        def produce(requests: AsyncIterator[Any]) -> Stream:
            stream = Stream(self, address or NODES[0], requests)
            self.streams.add(stream)
            return stream

        return SimpleNamespace(Produce=produce)

    async def describe_topic(self, topic: str) -> Any:
        return SimpleNamespace(topic_id="1", config={}, partitions=self.partitions)
