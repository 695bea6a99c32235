"""The member's gRPC listener."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Final

import grpc

from meta_service.api import meta_pb2_grpc as rpc
from meta_service.api.errors import StartupFailed
from meta_service.api.types import MetaStatus
from meta_service.core.gateway import Gateway
from meta_service.server.maintenance import MaintenanceService
from meta_service.server.services import ClusterService, KvService, TopicsService

MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
_STOP_S: Final = 0.5
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)
LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
"""Hosts on which plain text is allowed."""


class GrpcServer:
    """Serves one gateway. Plain text on loopback only."""

    def __init__(
        self,
        gateway: Gateway,
        status: Callable[[], MetaStatus],
        leader_address: Callable[[], str],
        maintenance: MaintenanceService,
    ) -> None:
        self._server = grpc.aio.server(options=_OPTIONS)
        shared = (gateway, status, leader_address)
        self.services = KvService(*shared), ClusterService(*shared), TopicsService(*shared)
        kv, cluster, topics = self.services
        rpc.add_KvServicer_to_server(kv, self._server)
        rpc.add_ClusterServicer_to_server(cluster, self._server)
        rpc.add_TopicsServicer_to_server(topics, self._server)
        rpc.add_MaintenanceServicer_to_server(maintenance, self._server)

    async def start(
        self, host: str, port: int, credentials: grpc.ServerCredentials | None = None
    ) -> str:
        """Returns `host:port` as bound. Raises StartupFailed."""
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if credentials is None and host not in LOOPBACK:
            raise StartupFailed(
                f"{address} is not loopback, and the MetaService speaks plain text only there"
            )
        _check_free(host, port, address)
        try:
            bound = (
                self._server.add_secure_port(address, credentials)
                if credentials is not None
                else self._server.add_insecure_port(address)
            )
        except RuntimeError as error:
            raise StartupFailed(f"cannot listen on {address}: the port is taken") from error
        await self._server.start()
        return f"[{host}]:{bound}" if ":" in host else f"{host}:{bound}"

    async def stop(self) -> None:
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
