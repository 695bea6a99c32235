"""One member of the MetaService: what the front door starts and stops."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from meta_service.api.errors import StartupFailed
from meta_service.api.settings import MetaSettings
from meta_service.api.types import MetaClient, MetaStatus

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

    from meta_service.server.assembly import Assembly


class MetaMember:
    """A member: its Raft log, its catalog, its gRPC server. Alone it is its own majority."""

    def __init__(
        self,
        settings: MetaSettings,
        *,
        node_id: str,
        host: str,
        data_dir: Path,
        meter: Meter | None = None,
    ) -> None:
        self._settings = settings
        self._node_id = node_id
        self._host = host
        self._data_dir = data_dir
        self._meter = meter
        self._cluster_id = ""
        self._assembly: Assembly | None = None
        self._client: MetaClient

    @property
    def cluster_id(self) -> str:
        """32 hex digits; the same for ever."""
        return self._cluster_id

    async def start(self) -> None:
        """Returns when the member can serve. Raises StartupFailed with one clear line."""
        # Loads pysyncobj, whose check may refuse, and RocksDB: not before a member is wanted.
        from meta_service.core.local_client import LocalClient
        from meta_service.raft.state import RaftTiming
        from meta_service.server.assembly import Assembly

        self._assembly = Assembly(self._data_dir, self._node_id, RaftTiming())
        self._cluster_id = await self._assembly.start()
        self._client = LocalClient(self._assembly.gateway, self.status)

    def client(self) -> MetaClient:
        """The client of this process: no socket."""
        return self._client

    def status(self) -> MetaStatus:
        if self._assembly is None:
            raise StartupFailed("the member is not started")
        node, cache = self._assembly.node, self._assembly.cache
        leader = node.leader
        return MetaStatus(
            self._cluster_id,
            self._node_id,
            str(leader.id) if leader is not None else None,
            node.term,
            node.commit_index,
            node.applied_index,
            cache.revision,
            (self._node_id,),
        )

    def addresses(self) -> dict[str, str]:
        """Listener name -> `host:port`, as bound."""
        return {}

    async def stop(self) -> None:
        assembly, self._assembly = self._assembly, None
        if assembly is not None:
            await assembly.stop()
