"""One member of the MetaService: what the front door starts and stops."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING

from lakemq.meta_service.api.errors import StartupFailed
from lakemq.meta_service.api.hosts import is_loopback, is_wildcard, join_host
from lakemq.meta_service.api.settings import MetaSettings
from lakemq.meta_service.api.types import MetaClient, MetaStatus

_GIVE_WAY_MAX_S = 0.5

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

    from lakemq.meta_service.raft.wire.sockets import Pem
    from lakemq.meta_service.server.allowed import Allowed
    from lakemq.meta_service.server.assembly import Assembly, Membership
    from lakemq.meta_service.server.grpc_server import GrpcServer, Services
    from lakemq.meta_service.server.operator_calls import Observe, OperatorCall
    from lakemq.meta_service.server.routed_client import RoutedClient


def _reachable(bound: str, raft_address: str) -> str:
    """Where clients are sent: not to a wildcard, but to the host that the others know."""
    host, _, port = bound.rpartition(":")
    if not raft_address or not is_wildcard(host.strip("[]")):
        return bound
    return f"{raft_address.rpartition(':')[0]}:{port}"


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
        self._joining: asyncio.Task[None] | None = None
        self._control: RoutedClient
        self.on_operator_call: Observe | None = None
        """Told what operators change at this member's own port, before they are answered."""

    async def _operator_called(self, call: OperatorCall) -> None:
        if self.on_operator_call is not None:
            await self.on_operator_call(call)

    @property
    def cluster_id(self) -> str:
        """32 hex digits; never changes."""
        return self._cluster_id

    async def start(self) -> None:
        """Returns when the member can serve. Raises StartupFailed with one clear line."""
        # Loads pysyncobj, whose check may refuse, and RocksDB: not before a member is wanted.
        from lakemq.meta_service.control import metrics
        from lakemq.meta_service.core.in_process import LocalTarget
        from lakemq.meta_service.core.local_client import LocalClient
        from lakemq.meta_service.raft.state import RaftTiming
        from lakemq.meta_service.server.assembly import Assembly
        from lakemq.meta_service.server.grpc_server import GrpcServer
        from lakemq.meta_service.server.routed_client import RoutedClient
        from lakemq.meta_service.server.tls import (
            channel_credentials,
            load_pem,
            server_credentials,
        )

        pem = load_pem(self._settings)
        membership = self._membership(pem)
        self._assembly = assembly = Assembly(
            self._data_dir, membership, RaftTiming(), self._settings.replace_after_s
        )
        try:
            allowed = self._allowed(assembly)
            services = self._services(assembly, allowed)
            self._control = RoutedClient(
                LocalClient(assembly.gateway, self.status, LocalTarget(services)),
                services,
                assembly.leader,
                channel_credentials(pem),
            )
            server = GrpcServer(services, allowed, self._operator_called)
            self._address = await server.start(
                self._host, self._settings.port, server_credentials(pem)
            )
            self._server = server
            # Before the group is looked for: members of it must be able to reach this one.
            assembly.listen(self._api_address)
            self._cluster_id = await self._begin(assembly, pem)
            await assembly.controller.start()
            if self._meter is not None:
                metrics.register(self._meter, assembly, assembly.snapshots.age_s)
        except BaseException:
            await self.stop()
            raise

    def _api_address(self, raft_address: str) -> str:
        return self._settings.advertise_api or _reachable(self._address, raft_address)

    async def _begin(self, assembly: Assembly, pem: Pem | None) -> str:
        """Find the group if there is none yet, then run. Returns the cluster id."""
        from lakemq.meta_service.server.joining import Joining
        from lakemq.meta_service.server.tls import channel_credentials

        settings = self._settings
        if not assembly.needs_group:
            return await assembly.start(settings.start_max_s)
        joining = Joining(settings.join, channel_credentials(pem), self._node_id)
        expect = 0 if assembly.has_begun else settings.expect
        found = await joining.find(expect, settings.start_max_s)
        if found is None:
            assembly.begin_alone()
            return await assembly.start(settings.start_max_s)
        assembly.begin_with(found.members)
        self._joining = asyncio.create_task(joining.join(found, assembly.raft_address))
        starting = asyncio.create_task(assembly.start(settings.start_max_s))
        await asyncio.wait({self._joining, starting}, return_when=asyncio.FIRST_COMPLETED)
        if self._joining.done() and (error := self._joining.exception()) is not None:
            starting.cancel()
            raise StartupFailed(str(error)) from error
        return await starting

    def _membership(self, pem: Pem | None) -> Membership:
        from lakemq.meta_service.server.assembly import Membership

        members = dict(self._settings.members)
        if members and not self._settings.join and self._node_id not in members:
            raise StartupFailed(
                f"meta.members does not name this node, {self._node_id!r}: {', '.join(members)}"
            )
        own = self._own_address() if self._settings.join else members.pop(self._node_id, "")
        if own and pem is None and not is_loopback(self._host):
            raise StartupFailed(
                f"{self._host} is not loopback, and members speak plain text only there: set "
                "meta.tls_cert, meta.tls_key and meta.tls_ca"
            )
        settings = self._settings
        return Membership(
            self._node_id,
            members,
            self._host,
            settings.raft_port,
            pem,
            own,
            joins=bool(settings.join),
        )

    def _own_address(self) -> str:
        """Where the others will reach a member that joins; empty: wherever it will listen."""
        settings = self._settings
        if settings.members:
            raise StartupFailed("meta.members and meta.join cannot both be set")
        if settings.advertise:
            return settings.advertise
        if is_wildcard(self._host):
            raise StartupFailed(f"other members cannot reach {self._host}: set meta.advertise")
        return join_host(self._host, settings.raft_port) if settings.raft_port else ""

    def _services(self, assembly: Assembly, allowed: Allowed) -> Services:
        from lakemq.meta_service.server.auth_service import AuthService
        from lakemq.meta_service.server.control.nodes import ClusterService
        from lakemq.meta_service.server.control.topics import TopicsService
        from lakemq.meta_service.server.discovery_service import DiscoveryService
        from lakemq.meta_service.server.grpc_server import Services
        from lakemq.meta_service.server.maintenance import MaintenanceService
        from lakemq.meta_service.server.schemas_service import SchemasService
        from lakemq.meta_service.server.services import KvService

        gateway, controller = assembly.gateway, assembly.controller
        shared = (gateway, self.status, self._leader_address)
        return Services(
            KvService(*shared),
            ClusterService(shared, controller, time.monotonic),
            TopicsService(shared, controller),
            MaintenanceService(
                gateway, assembly.snapshots, assembly.cluster_id, self._leader_address
            ),
            AuthService(*shared),
            SchemasService(*shared),
            DiscoveryService(assembly, allowed),
        )

    def _allowed(self, assembly: Assembly) -> Allowed:
        from lakemq.meta_service.catalog.nodes import node_key
        from lakemq.meta_service.server.allowed import Allowed

        def is_known(name: str) -> bool:
            group = assembly.node.group
            if name in group.voters or name in group.learners:
                return True
            return assembly.gateway.cache.get(node_key(name)) is not None

        return Allowed(self._settings.operators, self._settings.nodes, is_known)

    def client(self) -> MetaClient:
        """The client of this process. A member that is alone takes the shortest way."""
        if self._assembly is None:
            raise StartupFailed("the member is not started")
        if self._assembly.wire is None:
            return self._control.local
        return self._control

    def control(self) -> RoutedClient:
        """The same with all that brokers of a cluster call: heartbeats, drains, in-sync sets."""
        return self._control

    def status(self) -> MetaStatus:
        """This member's own view of the group. Raises StartupFailed before `start`."""
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
            tuple(sorted({*self._assembly.node.group.voters, *self._assembly.node.group.learners})),
            self._assembly.detail(),
        )

    def addresses(self) -> dict[str, str]:
        """Listener name -> `host:port`, as bound."""
        return {"meta": self._address} if self._address else {}

    def _leader_address(self) -> str:
        return self._assembly.leader()[1] if self._assembly is not None else ""

    async def stop(self) -> None:
        """Hand the leadership over, then stop serving, then stop; also after a failed start."""
        joining, self._joining = self._joining, None
        if joining is not None:
            joining.cancel()
            await asyncio.gather(joining, return_exceptions=True)
        if self._assembly is not None:
            # While the server still answers, so that clients hear of the next leader from this one.
            await self._assembly.give_way(_GIVE_WAY_MAX_S)
        server, self._server = self._server, None
        if server is not None:
            await self._control.close()
            await server.stop()
        assembly, self._assembly = self._assembly, None
        if assembly is not None:
            await assembly.stop()
