"""The blocking faces of `client.admin`, `client.schemas` and `client.schedules`."""

from __future__ import annotations

from typing import Any

from lakemq.broker_core.api.schemas.types import unframed
from lakemq.plugins.native.sdk.admin import Admin
from lakemq.plugins.native.sdk.blocking.portal import Facade, blocking
from lakemq.plugins.native.sdk.schedules import Schedules
from lakemq.plugins.native.sdk.schemas import Schemas, Serializer


class SyncAdmin(Facade[Admin]):
    """Made by `SyncClient.admin`: as `Admin`, but blocking."""

    alter_topic = blocking(Admin.alter_topic)
    add_partitions = blocking(Admin.add_partitions)
    delete_records = blocking(Admin.delete_records)
    describe_cluster = blocking(Admin.describe_cluster)
    queues = blocking(Admin.queues)
    alter_queue = blocking(Admin.alter_queue)
    reset_queue = blocking(Admin.reset_queue)
    delete_queue = blocking(Admin.delete_queue)


class SyncSchemas(Facade[Schemas]):
    """Made by `SyncClient.schemas`: as `Schemas`, but blocking."""

    register = blocking(Schemas.register)
    check = blocking(Schemas.check)
    get = blocking(Schemas.get)
    subjects = blocking(Schemas.subjects)
    delete = blocking(Schemas.delete)
    set_compatibility = blocking(Schemas.set_compatibility)

    def serializer(self, subject: str, version: int | None = None) -> Serializer:
        """As `Schemas.serializer`."""
        return Serializer(self.get(subject, version))

    def decode(self, value: bytes) -> Any:
        """As `Schemas.decode`; values are decoded in the calling thread."""
        schema_id, payload = unframed(value)
        known = self._inner.formats.get(schema_id)
        if known is None:
            known = self._call(lambda inner: inner.format_of(schema_id))
        return known.decode(payload)


class SyncSchedules(Facade[Schedules]):
    """Made by `SyncClient.schedules`: as `Schedules`, but blocking."""

    send = blocking(Schedules.send)
    send_batch = blocking(Schedules.send_batch)
    cancel = blocking(Schedules.cancel)
    waiting = blocking(Schedules.waiting)
