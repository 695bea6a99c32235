"""Ports of queues: the coordinators that protocols call, and one consumer of a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.queues.types import (
    GivenSettings,
    QueueCounters,
    QueueDescription,
    QueueLevels,
    QueueLimits,
    QueueSettings,
    Settlement,
)
from lakemq.broker_core.api.types import Principal


class QueueConsumer(Protocol):
    """One consumer of a queue. What it has not settled when it is closed goes to others."""

    @property
    def settings(self) -> QueueSettings:
        """Of its queue."""

    @property
    def topic_id(self) -> str:
        """Of its queue's topic."""

    @property
    def failure(self) -> LakeMQError | None:
        """Why the queue has ended it; None: it has not, or there is nothing wrong."""

    async def next(self) -> object:
        """A `QueueDelivery`, or what was given to `send`, in order; None: there is no more. The
        next delivery is prepared when this is called again, so that a consumer that does not read
        holds no memory of the broker."""

    def send(self, answer: object) -> None:
        """Let `next` give this behind what waits: an answer of the protocol's own."""

    def settle(
        self,
        partition: int,
        ranges: Iterable[tuple[int, int]],
        settlement: Settlement,
        delay_ms: int = -1,
    ) -> tuple[Sequence[tuple[int, int]], asyncio.Future[None] | None]:
        """Settle records by (first, last) offsets: those of them that it does not hold, and what to
        wait for before it is answered, which fails when it is not known whether that is on disk.
        `delay_ms`: pause of RETRY in place of the queue's backoff; -1: none is given. The caller
        bounds the ranges. Raises UnknownPartition, NotLeader."""

    def end(self, failure: LakeMQError | None = None) -> None:
        """`next` gives what waits, and then None; no more is delivered."""

    def close(self) -> None:
        """The consumer is gone; what it holds goes to others. May be called again."""


class QueueCoordinators(Protocol):
    """The queues that this node is to coordinate, each of a group and a topic. Of others all
    methods raise NotLeader, with the coordinator's id and native address; Unavailable while this
    node takes one over. Other errors are those of `lakemq.broker_core.api.errors`."""

    def configure(self, limits: QueueLimits) -> None:
        """Use other limits. By the plugin that has settings for them, before the node registers
        (when its listener is made); after that `consumers_max` and `prefetch_max` alone may be
        others."""

    @property
    def counters(self) -> QueueCounters:
        """Read by metrics."""

    def levels(self) -> Sequence[QueueLevels]:
        """Of the queues that have, or had, consumers here."""

    def names(self) -> Sequence[tuple[str, str]]:
        """(group, topic) of all queues that this node coordinates, in no order."""

    def coordinator_of(self, group: str, topic: str) -> str:
        """Node that coordinates the queue; empty: none does now, or the first use will tell."""

    def coordinators(self) -> Sequence[str]:
        """Nodes that coordinate queues."""

    async def open(
        self,
        group: str,
        topic: str,
        *,
        principal: Principal,
        prefetch: int = 0,
        given: GivenSettings | None = None,
    ) -> QueueConsumer:
        """Consume a queue, which is created if it does not exist. `prefetch`: records that the
        consumer may hold; 0: 100. `given`: settings that a new queue gets, and another one must
        have. Raises InvalidRequest, NotAuthorized, UnknownTopic."""

    async def describe(
        self, group: str = "", topic: str = "", *, principal: Principal
    ) -> Sequence[QueueDescription]:
        """Queues that the principal may see; those that other nodes coordinate are left out.
        Empty: of all groups, of all topics."""

    async def alter(
        self, group: str, topic: str, given: GivenSettings, *, principal: Principal
    ) -> QueueSettings:
        """Change or create a queue; its settings from now on. Raises UnknownTopic, InvalidRequest,
        NotAuthorized, GroupNotEmpty (`order` of a queue in use)."""

    async def reset(
        self, group: str, topic: str, offsets: Mapping[int, int], *, principal: Principal
    ) -> None:
        """Let a queue without consumers continue from other offsets, EARLIEST or LATEST, by
        partition. Raises UnknownGroup, GroupNotEmpty, UnknownPartition, OffsetOutOfRange,
        NotAuthorized."""

    async def delete(self, group: str, topic: str, *, principal: Principal) -> None:
        """Delete a queue and its state. Raises UnknownGroup, GroupNotEmpty, NotAuthorized."""
