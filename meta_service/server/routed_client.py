"""The client of a member in a group: the own member where it can answer, the leader where it must.

It is the remote client with one more target, this process, which takes no socket. Watches and stale
reads are answered here; writes and linearizable reads go to the leader, wherever it is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import grpc

from lakemq.meta_service.api.auth import AuthChange
from lakemq.meta_service.api.remote.calls import Target
from lakemq.meta_service.api.remote.client import NODE_AGENT, RemoteClient
from lakemq.meta_service.api.schemas import SubjectChange
from lakemq.meta_service.api.types import (
    KeyValue,
    MetaStatus,
    PartitionsChange,
    TopicChange,
    WatchEvent,
)
from lakemq.meta_service.core.in_process import HERE, LocalTarget
from lakemq.meta_service.core.local_client import LocalClient
from lakemq.meta_service.server.grpc_server import Services


class RoutedClient(RemoteClient):
    """Implements `MetaClient`."""

    def __init__(
        self,
        local: LocalClient,
        services: Services,
        leader_name: Callable[[], tuple[str, str]],
        credentials: grpc.ChannelCredentials | None,
        timeout_s: float = 10.0,
    ) -> None:
        """`leader_name()`: (id, address) of the leader as far as this member knows."""
        super().__init__([HERE], credentials=credentials, timeout_s=timeout_s, agent=NODE_AGENT)
        self.local = local
        self._leader_name = leader_name
        self._targets[HERE] = LocalTarget(services)

    def _target(self) -> Target:
        """The leader if it is known, else this member, which says that there is none."""
        name, address = self._leader_name()
        self._current = address or HERE
        return self._target_at(self._current, name)

    def _turn(self, leader: str) -> None:
        """The leader is looked up for each attempt."""

    async def status(self) -> MetaStatus:
        """The own member's view of the group."""
        return await self.local.status()

    async def get(self, key: bytes, *, stale: bool = False) -> KeyValue | None:
        """The key's value; from the own member if `stale`, else from the leader."""
        if stale:
            return await self.local.get(key, stale=True)
        return await super().get(key)

    def watch(self, prefix: bytes, start_revision: int) -> AsyncIterator[WatchEvent]:
        """Events from the own member, which applies all that the leader does."""
        return self.local.watch(prefix, start_revision)

    def watch_partitions(
        self, start_revision: int
    ) -> AsyncIterator[TopicChange | PartitionsChange]:
        """Changes of topics, or of some partitions, from the own member."""
        return self.local.watch_partitions(start_revision)

    def watch_auth(self, start_revision: int) -> AsyncIterator[AuthChange]:
        """Changes of users, rules and quotas from the own member."""
        return self.local.watch_auth(start_revision)

    def watch_subjects(self, start_revision: int) -> AsyncIterator[SubjectChange]:
        """Changes of schemas from the own member."""
        return self.local.watch_subjects(start_revision)
