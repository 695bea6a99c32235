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
    from meta_service.server.grpc_server import GrpcServer


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
        self._address = ""
        self._assembly: Assembly | None = None
        self._server: GrpcServer | None = None
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
        from meta_service.server.grpc_server import GrpcServer

        self._assembly = assembly = Assembly(self._data_dir, self._node_id, RaftTiming())
        try:
            self._cluster_id = await assembly.start()
            self._client = LocalClient(assembly.gateway, self.status)
            server = GrpcServer(assembly.gateway, self.status, self._leader_address)
            self._address = await server.start(self._host, self._settings.port)
            self._server = server
        except BaseException:
            await self.stop()
            raise

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
        return {"meta": self._address} if self._address else {}

    def _leader_address(self) -> str:
        return ""

    async def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop()
        assembly, self._assembly = self._assembly, None
        if assembly is not None:
            await assembly.stop()
