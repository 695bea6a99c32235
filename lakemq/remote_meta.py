"""The MetaService of a node that is no member of it: a client of the members that `meta.join`
names."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Final

from lakemq.broker_core.api.backoff import Backoff
from lakemq.broker_core.api.errors import StartupError
from lakemq.meta_service.api.errors import MetaError, StartupFailed
from lakemq.meta_service.api.remote.client import NODE_AGENT, RemoteClient
from lakemq.meta_service.api.settings import MetaSettings
from lakemq.meta_service.server.tls import channel_credentials, load_pem

_RETRY_FIRST_MS: Final = 100
_RETRY_MAX_MS: Final = 1_000
_rng: Final = random.Random()


class RemoteMeta:
    """Has what the node uses of a `MetaMember`."""

    def __init__(self, settings: MetaSettings) -> None:
        self.cluster_id = ""
        """32 hex digits; known once it has started."""
        self._settings = settings
        self._client: RemoteClient

    async def start(self) -> None:
        """Find the cluster; waits `meta.start_max_s` for members that have a leader. Raises
        StartupError."""
        settings = self._settings
        try:
            credentials = channel_credentials(load_pem(settings))
        except StartupFailed as error:
            raise StartupError(f"meta: {error}") from error
        self._client = RemoteClient(settings.join, credentials=credentials, agent=NODE_AGENT)
        backoff = Backoff(_RETRY_FIRST_MS, _RETRY_MAX_MS, _rng.random)
        deadline = time.monotonic() + settings.start_max_s
        while True:
            try:
                status = await self._client.status()
                reason = "they have no leader"
                if status.cluster_id and status.leader_id:
                    self.cluster_id = status.cluster_id
                    return
            except MetaError as error:
                reason = str(error)
            if time.monotonic() > deadline:
                await self._client.close()
                members = ", ".join(settings.join)
                raise StartupError(f"meta.join: the members at {members} do not answer: {reason}")
            await asyncio.sleep(backoff.next_s())

    def client(self) -> RemoteClient:
        """The client that all parts of the node share."""
        return self._client

    def control(self) -> RemoteClient:
        """The same, for heartbeats."""
        return self._client

    def addresses(self) -> dict[str, str]:
        """No listener."""
        return {}

    async def stop(self) -> None:
        """Close the connections."""
        await self._client.close()
