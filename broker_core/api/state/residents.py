"""State that lives where its partition is led: one `Resident` for the partitions of a shared topic.

Each partition of a topic of `internal_topics.SHARED` is read back by the node that comes to lead
it, which alone answers for it and writes to it. `Residency` decides, this carries it out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

from lakemq.broker_core.api.errors import LakeMQError, NotLeader, Unavailable
from lakemq.broker_core.api.leadership import leadership, leads
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.state.residency import Residency, Todo
from lakemq.broker_core.api.state.state_topic import StateTopic
from lakemq.broker_core.api.types import TopicInfo

_log: Final = logging.getLogger(__name__)
RETRY_S: Final = 0.05
"""A partition that could not be read back is tried again after so long."""
WAIT_MAX_S: Final = 5.0
"""How long a request waits for its partition to be read back."""
StateT = TypeVar("StateT")


class Resident(Protocol[StateT]):
    """Keeps the state of partitions in memory. All methods run on the event loop."""

    async def load(self, partition: int, end: int) -> StateT:
        """Read the partition back, as far as offset `end`. Holds nothing yet. May be cancelled.
        Raises LakeMQError: it is tried again."""

    def serve(self, partition: int, epoch: int, state: StateT) -> None:
        """Hold what `load` gave; requests may be answered from now on. `epoch`: of the
        leadership."""

    def drop(self, partition: int) -> None:
        """Forget what is held: another node has led the partition, or leads it."""


class Residents(Generic[StateT]):
    """Has a resident hold those partitions of a topic that this node leads."""

    def __init__(self, broker: Broker, topic: StateTopic, resident: Resident[StateT]) -> None:
        self._broker = broker
        self._topic = topic
        self._resident = resident
        self._places: dict[int, Residency] = {}
        self._topic_id = ""
        self._loads: dict[int, asyncio.Task[None]] = {}
        self._looking: asyncio.Handle | None = None
        self._unwatch: Sequence[Callable[[], None]] = ()

    async def start(self) -> None:
        """Read what this node leads already, then follow what it leads."""
        self._unwatch = (
            self._broker.watch_topics(self._changed),
            self._broker.watch_serving(self._look_soon),
        )
        self.look()
        # A node alone leads its partitions before it is registered: what it holds is in force
        # before any call is served.
        if self._loads:
            await asyncio.wait(self._loads.values())

    async def stop(self) -> None:
        """Follow no more; what is held stays."""
        for unwatch in self._unwatch:
            unwatch()
        if self._looking is not None:
            self._looking.cancel()
        tasks = list(self._loads.values())
        self._loads.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- requests

    def check(self, partition: int) -> None:
        """Raises NotLeader (with the leader's address, if it is known) where another node answers
        for the partition, and Unavailable while it is being read back."""
        self._broker.partition(self._topic.name, partition)
        place = self._places.get(partition)
        if place is None or not place.serves:
            # A lease that ended and came back between two ticks of the replication is not told.
            self._look_soon()
            raise Unavailable(
                f"{self._topic.name}/{partition}: {self._broker.node_id} leads it and still reads "
                "back what it holds; try again"
            )

    async def arrive(self, partition: int) -> None:
        """As `check`, but waits while the partition is being read back, `WAIT_MAX_S` at most."""
        try:
            self.check(partition)
        except Unavailable:
            self.look()
            load = self._loads.get(partition)
            if load is not None:
                await asyncio.wait([load], timeout=WAIT_MAX_S)
            self.check(partition)

    def serves(self, partition: int) -> bool:
        """Whether `check` raises nothing."""
        with suppress(LakeMQError):
            self.check(partition)
            return True
        return False

    # -- what this node leads

    def _changed(self, name: str, _: TopicInfo | None) -> None:
        if name == self._topic.name:
            self.look()

    def _look_soon(self) -> None:
        # Once for all that changes in this turn: a node may come to lead many partitions at once.
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_soon(self.look)

    def look(self) -> None:
        """Drop what this node leads no more, begin to read what it has come to lead."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        info = self._topic.info
        topic_id = info.topic_id if info is not None else ""
        if topic_id != self._topic_id:  # deleted, or made again
            for partition, place in self._places.items():
                self._end_load(partition)
                if place.held:
                    self._resident.drop(partition)
            self._places.clear()
            self._topic_id = topic_id
        if info is None:
            return
        for partition in range(info.partitions):
            place = self._places.setdefault(partition, Residency())
            epoch = leadership(info, partition).epoch
            held = place.held
            todo = place.look(
                leads=leads(self._broker.node_id, info, partition),
                epoch=epoch,
                ready=self._broker.serves(info.name, partition),
            )
            if todo is not Todo.NOTHING and held:
                self._resident.drop(partition)
            if not place.reading:
                self._end_load(partition)
            if todo is Todo.READ:
                self._end_load(partition)
                self._begin_load(partition, place, epoch)

    def _begin_load(self, partition: int, place: Residency, epoch: int) -> None:
        task = asyncio.create_task(self._load(partition, place, place.turn, epoch))
        self._loads[partition] = task
        task.add_done_callback(partial(self._load_ended, partition))

    def _end_load(self, partition: int) -> None:
        load = self._loads.pop(partition, None)
        if load is not None:
            load.cancel()

    def _load_ended(self, partition: int, task: asyncio.Task[None]) -> None:
        if self._loads.get(partition) is not task:
            return
        del self._loads[partition]
        place = self._places.get(partition)
        if place is not None and not place.held and self._looking is None:  # it has failed
            self._looking = asyncio.get_running_loop().call_later(RETRY_S, self.look)

    async def _load(self, partition: int, place: Residency, turn: int, epoch: int) -> None:
        name = f"{self._topic.name}/{partition}"
        try:
            # All that an earlier leader acknowledged lies below, though this one may not know yet
            # that it is committed.
            end = self._topic.log(partition).log_end_offset
            state = await self._resident.load(partition, end)
        except NotLeader:
            place.failed(turn)
        except LakeMQError as error:
            _log.warning("%s can't be read back yet, trying again: %s", name, error)
            place.failed(turn)
        else:
            if place.was_read(turn):
                self._resident.serve(partition, epoch, state)
