"""Creates, alters and deletes topics: requests are checked here and decided by the MetaService."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from lakemq.broker_core.api.errors import InvalidRequest, TopicExists, UnknownTopic
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
from lakemq.meta_service.api.errors import MetaError
from lakemq.meta_service.api.types import MetaClient, TopicDescription

PARTITIONS_MAX: Final = 10_000


def default_topic_config(settings: TopicSettings) -> TopicConfig:
    """Section `[topics]` as a topic config; -1 there means without limit."""
    values = settings.model_dump(exclude={"partitions"})
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
        self._default_partitions = settings.partitions
        self._default_config = default_topic_config(settings)
        self._altering = asyncio.Lock()

    async def create(
        self, name: str, partitions: int | None, config: TopicConfig | None
    ) -> TopicInfo:
        """As `Broker.create_topic`."""
        check_topic_name(name)
        count = self._default_partitions if partitions is None else partitions
        if not 1 <= count <= PARTITIONS_MAX:
            raise InvalidRequest(f"partitions is {count}; it takes 1 to {PARTITIONS_MAX}")
        chosen = config or self._default_config
        check_config(chosen)
        await self._schemas.check_subject(chosen.schema)
        try:
            described = await self._meta.create_topic(name, count, config_to_catalog(chosen))
        except MetaError as error:
            raise broker_error(error, name) from None
        return await self._catalog.apply(described)

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
        self, name: str, partitions: int | None, changes: Mapping[str, str | int | None] | None
    ) -> TopicInfo:
        """As `Broker.alter_topic`."""
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
            if config is None and partitions in (None, count):
                return await self._catalog.apply(described)
            try:
                described = await self._meta.alter_topic(name, partitions=partitions, config=config)
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
