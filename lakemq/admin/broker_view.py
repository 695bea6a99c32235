"""What the HTTP admin needs of a node: its broker has it, and so has a member without one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lakemq.broker_core.api.ports import Credentials
from lakemq.broker_core.api.types import (
    NO_CONTEXT,
    AccessContext,
    Operation,
    PartitionStatus,
    Principal,
    Resource,
    TopicInfo,
)


class AdminBroker(Protocol):
    """As the methods of `Broker` of these names."""

    def topics(self) -> Sequence[TopicInfo]:
        """All topics of the catalog."""

    def topic(self, name: str) -> TopicInfo:
        """Raises UnknownTopic."""

    def partition_status(self, topic: str, partition: int) -> PartitionStatus:
        """Of any partition. Raises UnknownTopic, UnknownPartition."""

    async def authenticate(self, credentials: Credentials) -> Principal:
        """Raises NotAuthenticated, Unavailable."""

    def authorize(
        self,
        principal: Principal,
        operation: Operation,
        resource: Resource,
        context: AccessContext = NO_CONTEXT,
    ) -> None:
        """Raises NotAuthorized, NotAuthenticated."""
