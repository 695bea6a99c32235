"""The member's gRPC listener."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Final

import grpc

from lakemq.meta_service.api.errors import StartupFailed
from lakemq.meta_service.api.hosts import is_loopback, join_host
from lakemq.meta_service.proto import auth_pb2_grpc as auth_rpc
from lakemq.meta_service.proto import discovery_pb2_grpc as discovery_rpc
from lakemq.meta_service.proto import meta_pb2_grpc as rpc
from lakemq.meta_service.proto import schemas_pb2_grpc as schemas_rpc
from lakemq.meta_service.server.allowed import Allowed, CertificateCheck
from lakemq.meta_service.server.auth_service import AuthService
from lakemq.meta_service.server.control.nodes import ClusterService
from lakemq.meta_service.server.control.topics import TopicsService
from lakemq.meta_service.server.discovery_service import DiscoveryService
from lakemq.meta_service.server.maintenance import MaintenanceService
from lakemq.meta_service.server.operator_calls import Observe
from lakemq.meta_service.server.schemas_service import SchemasService
from lakemq.meta_service.server.services import KvService

MESSAGE_MAX_BYTES: Final = 4 * 1024 * 1024
_STOP_S: Final = 0.5
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_MAX_BYTES),
    ("grpc.max_send_message_length", MESSAGE_MAX_BYTES),
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.lookahead_bytes", 16 * 1024),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.max_concurrent_streams", 256),
    ("grpc.max_allowed_incoming_connections", 1024),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_metadata_size", 16 * 1024),
    ("grpc.absolute_max_metadata_size", 32 * 1024),
)


@dataclass(frozen=True, slots=True)
class Services:
    """All services of a member."""

    kv: KvService
    cluster: ClusterService
    topics: TopicsService
    maintenance: MaintenanceService
    auth: AuthService
    schemas: SchemasService
    discovery: DiscoveryService


class GrpcServer:
    """Serves one member. Plain text on loopback only."""

    def __init__(
        self, services: Services, allowed: Allowed, observe: Observe | None = None
    ) -> None:
        """`observe`: told what operators change."""
        self._server = grpc.aio.server(
            interceptors=[CertificateCheck(allowed, observe)], options=_OPTIONS
        )
        discovery_rpc.add_DiscoveryServicer_to_server(services.discovery, self._server)
        rpc.add_KvServicer_to_server(services.kv, self._server)
        rpc.add_ClusterServicer_to_server(services.cluster, self._server)
        rpc.add_TopicsServicer_to_server(services.topics, self._server)
        rpc.add_MaintenanceServicer_to_server(services.maintenance, self._server)
        schemas_rpc.add_SchemasServicer_to_server(services.schemas, self._server)
        auth_rpc.add_AuthServicer_to_server(services.auth, self._server)

    async def start(
        self, host: str, port: int, credentials: grpc.ServerCredentials | None = None
    ) -> str:
        """Returns `host:port` as bound. Raises StartupFailed."""
        address = join_host(host, port)
        try:
            bound = self._bind(host, port, address, credentials)
        except StartupFailed:
            await self._server.stop(None)
            raise
        await self._server.start()
        return join_host(host, bound)

    def _bind(
        self, host: str, port: int, address: str, credentials: grpc.ServerCredentials | None
    ) -> int:
        if credentials is None and not is_loopback(host):
            raise StartupFailed(
                f"{address} is not loopback, and the MetaService speaks plain text only there"
            )
        _check_free(host, port, address)
        try:
            if credentials is not None:
                return self._server.add_secure_port(address, credentials)
            return self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise StartupFailed(f"cannot listen on {address}: the port is taken") from error

    async def stop(self) -> None:
        """Stop listening; calls under way have half a second to end."""
        await self._server.stop(_STOP_S)


def _check_free(host: str, port: int, address: str) -> None:
    """Say it clearly and alone: gRPC's core would write its own lines to standard error first."""
    try:
        with socket.create_server((host, port), family=_family(host)):
            pass
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise StartupFailed(f"cannot listen on {address}: {reason}") from None


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
