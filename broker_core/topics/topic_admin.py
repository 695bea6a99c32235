"""Creates, alters and deletes topics: requests are checked here and decided by the MetaService."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Final

from lakemq.broker_core.api.backoff import Backoff
from lakemq.broker_core.api.errors import InvalidRequest, TopicExists, UnknownTopic
from lakemq.broker_core.api.state.internal_topics import SHARED, is_internal
from lakemq.broker_core.api.types import TopicConfig, TopicInfo
from lakemq.broker_core.catalog_view import CatalogView
from lakemq.broker_core.configuration.settings import TopicSettings
from lakemq.broker_core.meta_failures import broker_error
from lakemq.broker_core.partitions import Partitions
from lakemq.broker_core.schemas import SchemaRegistry
from lakemq.broker_core.topic_names import (
    altered_config,
    check_config,
    check_topic_name,
    config_from_catalog,
    config_to_catalog,
)
from lakemq.broker_core.topics.shared_topics import MAJORITY_FROM, replication_of
from lakemq.meta_service.api.errors import MetaError, UnsupportedCommand
from lakemq.meta_service.api.types import MetaClient, TopicDescription, machine_of

PARTITIONS_MAX: Final = 10_000
LEVEL_WAIT_S: Final = 10.0
"""How long a new topic waits for the feature level that it needs: a group that is founded has it as
soon as every member was heard."""


def default_topic_config(settings: TopicSettings) -> TopicConfig:
    """Section `[topics]` as a topic config; -1 there means without limit."""
    values = settings.model_dump(exclude={"partitions", "replication", "min_in_sync"})
    for name in ("retention_bytes", "retention_ms", "timestamp_ahead_max_ms"):
        values[name] = None if values[name] == -1 else values[name]
    return TopicConfig(**values)


class TopicAdmin:
    """The answer to a change is given once this node has applied it."""

    def __init__(
        self,
        meta: MetaClient,
        catalog: CatalogView,
        partitions: Partitions,
        schemas: SchemaRegistry,
        settings: TopicSettings,
    ) -> None:
        self._meta = meta
        self._catalog = catalog
        self._partitions = partitions
        self._schemas = schemas
        self.reconfigure(settings)
        self._altering = asyncio.Lock()

    def reconfigure(self, settings: TopicSettings) -> None:
        """Defaults of topics that are created from now on."""
        self._default_partitions = settings.partitions
        self._default_replication = settings.replication
        self._default_minimum = settings.min_in_sync
        self._default_config = default_topic_config(settings)

    async def create(
        self,
        name: str,
        partitions: int | None,
        config: TopicConfig | None,
        replication: int | None = None,
        min_in_sync: int | None = None,
    ) -> TopicInfo:
        """As `Broker.create_topic`."""
        check_topic_name(name)
        count = self._default_partitions if partitions is None else partitions
        if not 1 <= count <= PARTITIONS_MAX:
            raise InvalidRequest(f"partitions is {count}; it takes 1 to {PARTITIONS_MAX}")
        chosen = config or self._default_config
        check_config(chosen)
        await self._check_replication(replication, min_in_sync)
        if name in SHARED:
            replicas, minimum = replication_of(await self._count_nodes(), self._default_minimum)
        else:
            replicas, minimum = self._replication(name, replication, min_in_sync)
        await self._schemas.check_subject(chosen.schema)
        try:
            described = await self._created(name, count, chosen, replicas, minimum)
        except MetaError as error:
            raise broker_error(error, name) from None
        return await self._catalog.apply(described)

    async def _created(
        self, name: str, count: int, config: TopicConfig, replicas: int, minimum: int
    ) -> TopicDescription:
        """Waits while a group that was just founded does not know yet what its members can."""
        backoff = Backoff(50, 500, random.Random().random)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + LEVEL_WAIT_S
        while True:
            try:
                return await self._meta.create_topic(
                    name, count, config_to_catalog(config),
                    replication=replicas, min_in_sync=minimum,
                )  # fmt: skip
            except UnsupportedCommand as error:
                if loop.time() > deadline_s:
                    why = f"{error}: some member of the MetaService is down or older than this node"
                    raise UnsupportedCommand(why) from None
            await asyncio.sleep(backoff.next_s())

    async def _check_replication(self, replication: int | None, min_in_sync: int | None) -> None:
        """Raises InvalidRequest. More replicas than nodes are refused where they are asked for; as
        a default they come when there are nodes for them."""
        if replication is not None:
            nodes = await self._count_nodes()
            if not 1 <= replication <= nodes:
                raise InvalidRequest(
                    f"replication is {replication}; the cluster has {nodes} node(s), so it takes 1 "
                    f"to {nodes}"
                )
        if min_in_sync is not None and min_in_sync < 1:
            raise InvalidRequest(f"min_in_sync is {min_in_sync}; it takes 1 or more")

    async def _count_nodes(self) -> int:
        try:
            return max(1, len({machine_of(each) for each in await self._meta.nodes()}))
        except MetaError as error:
            raise broker_error(error, "nodes") from None

    def _replication(
        self, name: str, replication: int | None, min_in_sync: int | None
    ) -> tuple[int, int]:
        """(replicas, how many must be in sync) of a new topic. Raises InvalidRequest."""
        if is_internal(name):
            return 1, 1  # each node has its own copy
        replicas = self._default_replication if replication is None else replication
        minimum = min_in_sync
        if minimum is None and replication is None:
            minimum = self._default_minimum or None
        if minimum is None:
            minimum = 2 if replicas >= MAJORITY_FROM else 1
        if minimum > replicas:
            raise InvalidRequest(
                f"min_in_sync is {minimum} with {replicas} replica(s); it takes 1 to {replicas}"
            )
        return replicas, minimum

    async def ensure(self, name: str, partitions: int | None) -> TopicInfo:
        """As `Broker.ensure_topic`."""
        known = self._partitions.find(name)
        if known is not None:
            return known
        try:
            return await self.create(name, partitions, None)
        except TopicExists:  # another node was quicker, or the watch lags
            _, topics = await self._meta.topics()
            return await self._catalog.apply(next(each for each in topics if each.name == name))

    async def alter(
        self,
        name: str,
        partitions: int | None,
        changes: Mapping[str, str | int | None] | None,
        replication: int | None = None,
        min_in_sync: int | None = None,
    ) -> TopicInfo:
        """As `Broker.alter_topic`."""
        await self._check_replication(replication, min_in_sync)
        if is_internal(name) and (replication, min_in_sync) != (None, None):
            raise InvalidRequest(f"topic {name} is internal: its replicas are the broker's matter")
        # A change replaces the whole config: two at once on this node would lose one of them.
        async with self._altering:
            described = await self._described(name)
            count = len(described.partitions)
            if partitions is not None and not count <= partitions <= PARTITIONS_MAX:
                raise InvalidRequest(
                    f"partitions is {partitions}; topic {name} has {count}, "
                    f"and takes up to {PARTITIONS_MAX}"
                )
            config = await self._altered(described, changes) if changes else None
            if config is None and partitions in (None, count) and not (replication or min_in_sync):
                return await self._catalog.apply(described)
            try:
                described = await self._meta.alter_topic(
                    name,
                    partitions=partitions,
                    config=config,
                    replication=replication,
                    min_in_sync=min_in_sync,
                )
            except MetaError as error:
                raise broker_error(error, name) from None
        return await self._catalog.apply(described)

    async def _altered(
        self, described: TopicDescription, changes: Mapping[str, str | int | None]
    ) -> dict[str, str | int | None]:
        before = config_from_catalog(described.config, self._default_config)
        after = altered_config(before, changes)
        if after.schema != before.schema:
            await self._schemas.check_subject(after.schema)
        return config_to_catalog(after)

    async def _described(self, name: str) -> TopicDescription:
        """The topic as the catalog has it now. Raises UnknownTopic."""
        try:
            _, topics = await self._meta.topics()
        except MetaError as error:
            raise broker_error(error, name) from None
        for topic in topics:
            if topic.name == name:
                return topic
        raise UnknownTopic(f"topic {name!r} does not exist")

    async def delete(self, name: str) -> None:
        """As `Broker.delete_topic`."""
        try:
            await self._meta.delete_topic(name)
        except MetaError as error:
            raise broker_error(error, name) from None
        await self._catalog.remove(name)
