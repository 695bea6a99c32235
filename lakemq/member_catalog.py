"""What the HTTP admin of a node shows that is a member of the MetaService and no broker: the
catalog, and who may see it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from lakemq.broker_core.access import Access
from lakemq.broker_core.api.errors import LakeMQError, UnknownTopic
from lakemq.broker_core.api.leadership import check_partition, leadership
from lakemq.broker_core.api.ports import Credentials
from lakemq.broker_core.api.types import (
    NO_CONTEXT,
    AccessContext,
    Operation,
    PartitionStatus,
    Principal,
    Resource,
    TopicConfig,
    TopicInfo,
)
from lakemq.broker_core.catalog_view import topic_info, with_partitions
from lakemq.meta_service.api.errors import MetaError
from lakemq.meta_service.api.types import MetaClient, PartitionsChange


class MemberCatalog:
    """Implements `AdminBroker`. Follows the catalog, holds no record."""

    def __init__(self, meta: MetaClient, access: Access, default_config: TopicConfig) -> None:
        self.failed: asyncio.Future[BaseException]
        """Done when the catalog can't be followed any more: the node must stop."""
        self._meta = meta
        self._access = access
        self._default_config = default_config
        self._topics: dict[str, TopicInfo] = {}
        self._follower: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the catalog, then follow it. Raises MetaError."""
        self.failed = asyncio.get_running_loop().create_future()
        revision, topics = await self._meta.topics()
        self._topics = {each.name: topic_info(each, self._default_config) for each in topics}
        self._follower = asyncio.create_task(self._follow(revision + 1))

    async def _follow(self, revision: int) -> None:
        try:
            async for change in self._meta.watch_partitions(revision):
                if isinstance(change, PartitionsChange):
                    before = self._topics.get(change.name)
                    if before is not None:
                        self._topics[change.name], _ = with_partitions(before, change)
                elif change.topic is None:
                    self._topics.pop(change.name, None)
                else:
                    self._topics[change.name] = topic_info(change.topic, self._default_config)
        except (MetaError, LakeMQError, OSError) as error:
            if not self.failed.done():
                self.failed.set_result(error)

    async def stop(self) -> None:
        """Stop following."""
        if self._follower is not None:
            self._follower.cancel()
            with suppress(asyncio.CancelledError):
                await self._follower

    def topics(self) -> Sequence[TopicInfo]:
        """All topics of the catalog."""
        return list(self._topics.values())

    def topic(self, name: str) -> TopicInfo:
        """Raises UnknownTopic."""
        try:
            return self._topics[name]
        except KeyError:
            raise UnknownTopic(f"topic {name!r} does not exist") from None

    def partition_status(self, topic: str, partition: int) -> PartitionStatus:
        """State `remote`. Raises UnknownTopic, UnknownPartition."""
        info = self.topic(topic)
        check_partition(info, partition)
        leader = leadership(info, partition).leader
        detail = f"led by {leader}" if leader else "no node leads it"
        return PartitionStatus(partition, "remote", 0, 0, 0, 0, 0, detail)

    async def authenticate(self, credentials: Credentials) -> Principal:
        """The principal of these credentials. Raises NotAuthenticated, Unavailable."""
        return await self._access.authenticate(credentials)

    def authorize(
        self,
        principal: Principal,
        operation: Operation,
        resource: Resource,
        context: AccessContext = NO_CONTEXT,
    ) -> None:
        """Raises NotAuthorized or NotAuthenticated unless the operation is allowed."""
        self._access.authorize(principal, operation, resource, context)
