"""Section `[plugins.native]`."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from lakemq.broker_core.api.groups.types import GroupSettings
from lakemq.broker_core.api.hosts import is_loopback
from lakemq.broker_core.api.queues.types import QueueLimits
from lakemq.broker_core.api.settings import PluginSettings, Port, Reloadable, ReloadableWhileOn


class NativeSettings(PluginSettings):
    """The native gRPC protocol."""

    host: str = "127.0.0.1"
    """Address to bind to."""
    port: Port = 9700
    """TCP port."""
    advertised_host: str = ""
    """Host that clients and other nodes are told to connect to; empty: `host`."""
    tls_cert: ReloadableWhileOn[str] = ""
    """File with the server's certificate chain (PEM); not empty: TLS. Renewed files are taken into
    use for new connections, without a restart."""
    tls_key: ReloadableWhileOn[str] = ""
    """File with the certificate's private key (PEM)."""
    tls_ca: ReloadableWhileOn[str] = ""
    """File with the certificates of the authorities that sign client certificates (PEM). Not empty:
    every client must show a certificate; its common name is then the user."""
    insecure: bool = False
    """Take a `host` that other machines reach without TLS: who reads along sees every record."""
    message_max_bytes: int = Field(default=17 * 1024 * 1024, ge=1024 * 1024, le=288 * 1024 * 1024)
    """Largest message taken from a client; leave room for a topic's `batch_max_bytes` (bytes)."""
    connections_max: int = Field(default=1024, ge=16)
    """Connections at a time. One address (IPv6: one /64) has half of them; those that have not
    authenticated have a quarter, of which one address has a quarter. Keep it below the process's
    limit of open files."""
    unauthenticated_timeout_ms: int = Field(default=10_000, ge=100)
    """A connection is closed when no call on it was let in for so long after it was opened (ms)."""
    streams_per_connection_max: int = Field(default=256, ge=1)
    """Calls that one connection may have open at a time."""
    produce_bytes_in_flight_max: Reloadable[int] = Field(default=64 * 1024 * 1024, ge=1024 * 1024)
    """Un-acknowledged bytes that one produce stream may have; the broker reads no more of the
    stream until some are acknowledged."""
    fetch_max_bytes: int = Field(default=8 * 1024 * 1024, ge=64 * 1024, le=256 * 1024 * 1024)
    """Most bytes of record batches in one fetch answer; a larger single batch is still sent."""
    fetch_wait_ms: Reloadable[int] = Field(default=1000, ge=1, le=60_000)
    """How long a following fetch waits at the high watermark before polling again (ms)."""
    groups_max: int = Field(default=10_000, ge=1)
    """Maximum number of consumer groups that have members."""
    user_share_max: float = Field(default=0.5, gt=0, le=1)
    """Share of `groups_max`, and of `queues_max`, that one user may take up; 1: everything.
    Anonymous clients count as one user, which may have everything until a user with a name
    comes."""
    group_members_max: int = Field(default=1000, ge=1)
    """Maximum number of members of one consumer group."""
    group_session_timeout_ms: Reloadable[int] = Field(default=10_000, ge=500, le=3_600_000)
    """Without a heartbeat for this long, a member's partitions go to others; members may ask for
    another time (ms)."""
    group_session_timeout_min_ms: int = Field(default=1000, ge=500)
    """Shortest session time-out that a member may ask for (ms)."""
    group_session_timeout_max_ms: int = Field(default=1_800_000, ge=1000)
    """Longest session time-out that a member may ask for (ms)."""
    group_heartbeat_interval_ms: Reloadable[int] = Field(default=2000, ge=100)
    """How often members say that they are there (ms); never rarer than a third of their session
    time-out."""
    group_rebalance_timeout_ms: Reloadable[int] = Field(default=60_000, ge=1000, le=3_600_000)
    """A member that does not give up a partition within this time is put out of its group (ms)."""
    group_offsets_retention_ms: int = Field(default=7 * 24 * 3_600_000, ge=1000)
    """A group that has had no member and no commit for this long is deleted with its
    committed offsets (ms)."""
    lag_metrics_max: int = Field(default=1000, ge=0)
    """Pairs of group and topic whose lag is a metric; those with the largest lag are, and
    `lakemq_native_group_lag_left_out` counts the others."""
    queues_max: int = Field(default=1000, ge=1)
    """Maximum number of queues."""
    queue_consumers_max: Reloadable[int] = Field(default=1000, ge=1)
    """Maximum number of consumers of one queue."""
    queue_prefetch_max: Reloadable[int] = Field(default=10_000, ge=1, le=100_000)
    """Records that one consumer of a queue may hold at a time."""
    queue_window_records_max: int = Field(default=10_000, ge=1, le=1_000_000)
    """Unfinished records of a partition that a queue keeps in view; it goes on behind them when the
    oldest are finished."""

    def groups(self) -> GroupSettings:
        """What the coordinators of consumer groups obey."""
        return GroupSettings(
            groups_max=self.groups_max,
            user_share_max=self.user_share_max,
            members_max=self.group_members_max,
            session_timeout_ms=self.group_session_timeout_ms,
            session_timeout_min_ms=self.group_session_timeout_min_ms,
            session_timeout_max_ms=self.group_session_timeout_max_ms,
            heartbeat_interval_ms=self.group_heartbeat_interval_ms,
            rebalance_timeout_ms=self.group_rebalance_timeout_ms,
            offsets_retention_ms=self.group_offsets_retention_ms,
        )

    def queues(self) -> QueueLimits:
        """What the coordinators of queues obey."""
        return QueueLimits(
            queues_max=self.queues_max,
            user_share_max=self.user_share_max,
            consumers_max=self.queue_consumers_max,
            prefetch_max=self.queue_prefetch_max,
            window_records_max=self.queue_window_records_max,
            delivery_max_bytes=self.fetch_max_bytes,
        )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("tls_cert and tls_key must be set together")
        if self.tls_ca and not self.tls_cert:
            raise ValueError("tls_ca needs tls_cert and tls_key")
        if not (self.tls_cert or self.insecure or is_loopback(self.host)):
            raise ValueError(
                f"host {self.host} is reached by other machines: set tls_cert and tls_key, "
                "or set insecure = true"
            )
        return self
