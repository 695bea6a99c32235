"""The native protocol's listener: one gRPC server."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Final

import grpc
from opentelemetry.metrics import Meter

from lakemq.broker_core.api.administration.routes import AnyRoute
from lakemq.broker_core.api.errors import StartupError
from lakemq.broker_core.api.ports import Broker, ProcessShare
from lakemq.broker_core.api.tracing import Traces
from lakemq.plugins.native.config import NativeSettings
from lakemq.plugins.native.metrics import observe_native, observe_queues
from lakemq.plugins.native.proto.admin_pb2_grpc import add_AdminServicer_to_server
from lakemq.plugins.native.proto.metadata_pb2_grpc import add_MetadataServicer_to_server
from lakemq.plugins.native.proto.native_pb2_grpc import add_NativeServicer_to_server
from lakemq.plugins.native.proto.queues_pb2_grpc import add_QueuesServicer_to_server
from lakemq.plugins.native.proto.schedules_pb2_grpc import add_SchedulesServicer_to_server
from lakemq.plugins.native.proto.schemas_pb2_grpc import add_SchemasServicer_to_server
from lakemq.plugins.native.proto.security_pb2_grpc import add_SecurityServicer_to_server
from lakemq.plugins.native.proto.transactions_pb2_grpc import add_TransactionsServicer_to_server
from lakemq.plugins.native.queues.service import QueueService
from lakemq.plugins.native.server.authentication import Entrance
from lakemq.plugins.native.server.connection_guard import ConnectionGuard, limits_of
from lakemq.plugins.native.server.handlers import Services
from lakemq.plugins.native.server.tls import Certificates, ServerTls, certificates_of
from lakemq.plugins.native.services.admin import AdminService
from lakemq.plugins.native.services.metadata import MetadataService
from lakemq.plugins.native.services.records import NativeService
from lakemq.plugins.native.services.schedules import ScheduleService
from lakemq.plugins.native.services.schemas import SchemaService
from lakemq.plugins.native.services.security import SecurityService
from lakemq.plugins.native.services.transaction_metrics import observe_transactions
from lakemq.plugins.native.services.transactions import TransactionService

_STOP_GRACE_S: Final = 2.0
_SEND_MAX_BYTES: Final = 288 * 1024 * 1024
"""Room for the largest record batch (256 MiB), whatever today's limit for new ones is."""

_UNAUTHENTICATED: Final = (
    ("grpc.http2.lookahead_bytes", 16 * 1024),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.server.max_pending_requests", 400),
    ("grpc.server.max_pending_requests_hard_limit", 800),
    ("grpc.max_metadata_size", 16 * 1024),
    ("grpc.absolute_max_metadata_size", 32 * 1024),
)
"""What bounds a stream that is not read: 16 KiB of its message, a window that does not grow
with the speed of the line, the size of its headers, and how many calls wait to be looked at."""


class NativeListener:
    """Implements the `Listener` port."""

    name = "native"

    def __init__(
        self,
        broker: Broker,
        settings: NativeSettings,
        meter: Meter,
        traces: Traces | None = None,
        process: ProcessShare | None = None,
    ) -> None:
        """`traces`: None: they are off. `process`: it shares its port with others, and has one of
        its own beside, which clients are told."""
        self._broker = broker
        self._settings = settings
        self._process = process
        self._configure()
        self._tls: ServerTls | None = None
        self._service = NativeService(broker, settings, traces)
        self._metadata = MetadataService(broker)
        self._admin = AdminService(broker)
        self._transactions = TransactionService(broker, settings)
        self._schedules = ScheduleService(broker)
        self._queues = QueueService(broker)
        self._guard = ConnectionGuard(
            limits_of(settings.connections_max), settings.unauthenticated_timeout_ms / 1000
        )
        self._entrance = Entrance(broker, self._guard)
        self._security = SecurityService(broker, self._entrance, self._guard)
        self._server: grpc.aio.Server | None = None
        self._port = 0
        observe_native(meter, self._service, broker.groups, settings.lag_metrics_max)
        observe_queues(meter, broker.queues, settings.lag_metrics_max)
        observe_transactions(meter, broker)

    def _configure(self) -> None:
        """Pass on what the plugin's section says of coordinators."""
        self._broker.groups.configure(self._settings.groups())
        self._broker.queues.configure(self._settings.queues())

    def admin_routes(self) -> Sequence[AnyRoute]:
        """What operators do with groups, exports and queues."""
        # Models and routes come when the admin API is asked for something.
        from lakemq.plugins.native.groups.export_routes import ExportRoutes
        from lakemq.plugins.native.groups.routes import GroupRoutes
        from lakemq.plugins.native.queues.admin_routes import QueueRoutes

        return [
            *GroupRoutes(self._broker).routes(),
            *ExportRoutes(self._broker).routes(),
            *QueueRoutes(self._broker).routes(),
        ]

    def reconfigure(self, settings: NativeSettings) -> Callable[[], None]:
        """See `Reconfigurable`."""
        tls, files = self._tls, None
        if tls is not None and _tls_files(settings) != _tls_files(self._settings):
            files = _certificates_of(settings)

        def apply() -> None:
            if tls is not None and files is not None:
                tls.files = files
            self._settings = settings
            self._service.settings = self._transactions.settings = settings
            self._configure()

        return apply

    async def start(self) -> None:
        """Load state, then listen. Raises ConfigError (TLS files), StartupError (address in
        use)."""
        settings = self._settings
        server = grpc.aio.server(
            options=[
                # With SO_REUSEPORT a second node could bind the port too, and take a part of the
                # clients.
                ("grpc.so_reuseport", int(self._process is not None)),
                *_UNAUTHENTICATED,
                ("grpc.max_allowed_incoming_connections", settings.connections_max),
                ("grpc.server_handshake_timeout_ms", settings.unauthenticated_timeout_ms),
                ("grpc.max_receive_message_length", settings.message_max_bytes),
                ("grpc.max_send_message_length", _SEND_MAX_BYTES),
                ("grpc.max_concurrent_streams", settings.streams_per_connection_max),
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
                ("grpc.keepalive_permit_without_calls", 1),
            ]
        )
        services = Services(server, self._entrance, self._broker)
        services.add(self._service, add_NativeServicer_to_server)
        services.add(self._admin, add_AdminServicer_to_server)
        services.add(self._transactions, add_TransactionsServicer_to_server)
        services.add(self._schedules, add_SchedulesServicer_to_server)
        services.add(self._queues, add_QueuesServicer_to_server)
        services.add(self._security, add_SecurityServicer_to_server)
        services.add(SchemaService(self._broker), add_SchemasServicer_to_server)
        services.add(self._metadata, add_MetadataServicer_to_server)
        ports = [self._listen(server, settings.port)]
        if self._process is not None:
            # Leaders are told apart by it.
            ports.append(self._listen(server, self._process.port))
        self._port = ports[-1]
        self._metadata.start()
        await server.start()
        self._server = server
        self._guard.start(ports)

    def _listen(self, server: grpc.aio.Server, port: int) -> int:
        """The port that is bound. Raises StartupError."""
        host, shared = self._settings.host, self._process is not None
        try:
            # gRPC's core would write its own lines to standard error before ours.
            with socket.create_server((host, port), reuse_port=shared):
                pass
        except OSError as error:
            raise StartupError(
                f"native: cannot listen on {host}:{port}: {error.strerror}"
            ) from None
        try:
            return self._bind(server, f"{host}:{port}")
        except RuntimeError:
            raise StartupError(f"native: cannot listen on {host}:{port}") from None

    def _bind(self, server: grpc.aio.Server, address: str) -> int:
        settings = self._settings
        if not settings.tls_cert:
            return server.add_insecure_port(address)
        self._tls = ServerTls(_certificates_of(settings), mutual=bool(settings.tls_ca))
        return server.add_secure_port(address, self._tls.credentials)

    def addresses(self) -> Sequence[str]:
        """The address that clients connect to, `host:port`."""
        return [f"{self._settings.advertised_host or self._settings.host}:{self._port}"]

    def shared_addresses(self) -> Sequence[str]:
        """See `Sharing`."""
        if self._process is None:
            return []
        settings = self._settings
        return [f"{settings.advertised_host or settings.host}:{settings.port}"]

    def connections(self) -> int:
        """Open connections, as of the last look at them; 0 where the system does not tell them."""
        return self._guard.reconciler.limiter.connections

    async def stop(self) -> None:
        """Refuse new calls, end streams, then close."""
        self._service.stopping = True
        # Streams that end only when their client goes; the grace below is for calls that end by
        # themselves.
        self._service.members.end()
        self._queues.end()
        await self._metadata.stop()
        await self._guard.stop()
        if self._server is not None:
            await self._server.stop(_STOP_GRACE_S)


def _tls_files(settings: NativeSettings) -> tuple[str, str, str]:
    return settings.tls_cert, settings.tls_key, settings.tls_ca


def _certificates_of(settings: NativeSettings) -> Certificates:
    return certificates_of(*_tls_files(settings))
