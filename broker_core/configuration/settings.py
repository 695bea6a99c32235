"""Sections of the TOML file that belong to the broker core."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from lakemq.broker_core.api.settings import Port, Reloadable, ReloadableWhileOn, Section, Unlimited
from lakemq.meta_service.api.types import node_of

PROCESSES_MAX: Final = 64


class NodeSettings(Section):
    """This node."""

    id: str = Field(default="node-1", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")
    """Name of this node in the cluster: letters, digits, `.`, `_`, `-`; never changed later."""
    data_dir: str = "lakemq-data"
    """Folder that holds everything this node stores. Created if absent; one process at a time."""
    rack: str = Field(default="", max_length=128)
    """Where this node stands (rack, zone): replicas of a partition go to different ones."""
    roles: list[Literal["meta", "broker"]] = Field(
        default=["meta", "broker"], min_length=1, max_length=2
    )
    """What this node is: `meta`, a member of the MetaService; `broker`, which stores and serves
    records. A broker alone asks the members that `meta.join` names; a member alone has the
    MetaService's ports and the HTTP admin, and plugins open none."""
    host: str = "127.0.0.1"
    """Address that listeners bind to where their own section names none."""
    log_level: Reloadable[Literal["debug", "info", "warning", "error"]] = "warning"
    """How much the node says in its log."""
    log_format: Literal["text", "json", "journald"] = "text"
    """`text` and `json`: lines on standard error; `journald`: entries of systemd's journal with
    fields of their own (`journalctl LAKEMQ_CLIENT=...`)."""
    processes: Annotated[int, Field(ge=1, le=PROCESSES_MAX)] | Literal["auto"] = 1
    """Processes that share this node's ports and work, each with partitions of its own, in one data
    folder; `auto`: one for each CPU (docs/cluster.md)."""
    process: int = Field(default=0, ge=0, le=PROCESSES_MAX)
    """Which of them this is; `lakemq start` sets it, 0: all of them, or the only one."""
    process_ports: Port = 0
    """First of the ports on which single processes are reached: two for each, one for clients and
    one for other brokers. 0: the system chooses them."""
    event_loop: Literal["auto", "uvloop", "asyncio"] = "auto"
    """What drives the sockets; `auto`: uvloop where it is installed, else asyncio's own."""

    loop_stall_ms: int = Field(default=200, ge=0, le=60_000)
    """What holds the event loop for longer is named in the log and counted
    (`lakemq_node_loop_stalls`): it serves no client meanwhile (ms); 0: not at all."""

    @model_validator(mode="after")
    def _is_no_process(self) -> Self:
        if not self.process and node_of(self.id) != self.id:
            raise ValueError(f"id {self.id} ends as ids of further processes of a node do")
        return self


class ClusterSettings(Section):
    """What brokers of a cluster do for each other."""

    host: str = ""
    """Address on which other brokers reach this one; empty: `meta.host`, else `node.host`. One
    that is not loopback needs `meta.tls_cert`, `meta.tls_key` and `meta.tls_ca`, which brokers use
    too."""
    peer_port: Port = 9704
    """TCP port on which brokers talk to each other."""
    advertise: str = ""
    """`host:port` under which other brokers reach this one; empty: the host and port above."""
    replica_lag_max_ms: Reloadable[int] = Field(default=5_000, ge=100)
    """A replica that has not caught up with its leader for so long leaves the in-sync replicas
    (ms)."""
    replication_max_bytes_per_s: Reloadable[int] = Field(default=50_000_000, ge=1_000)
    """What replicas that catch up may take of this node's network and disk, in and out each
    (bytes/s). Replicas that are in sync are not held back."""
    ack_wait_ms: Reloadable[int] = Field(default=10_000, ge=100)
    """How long a record waits for its partition's leader, or for enough in-sync replicas, before
    its publisher is told that it was not acknowledged (ms)."""


class TopicSettings(Section):
    """Defaults for topics created without these settings."""

    partitions: Reloadable[int] = Field(default=1, ge=1, le=10_000)
    """Number of partitions."""
    replication: Reloadable[int] = Field(default=1, ge=1, le=32)
    """Replicas of each partition, on as many nodes; fewer where there are fewer nodes."""
    min_in_sync: Reloadable[int] = Field(default=0, ge=0, le=32)
    """Replicas that must be in sync for records to be acknowledged as replicated; 0: 2 with 3
    replicas or more, else 1."""
    segment_max_bytes: Reloadable[int] = Field(default=256 * 1024 * 1024, ge=4096)
    """Size at which a segment is rolled (bytes)."""
    segment_age_max_ms: Reloadable[int] = Field(default=24 * 60 * 60 * 1000, ge=1000)
    """Age at which a segment is rolled (ms)."""
    retention_bytes: Reloadable[Unlimited] = Field(default=-1, ge=-1)
    """Size up to which a partition is kept (bytes); -1 or "none": without limit."""
    retention_ms: Reloadable[Unlimited] = Field(default=7 * 24 * 60 * 60 * 1000, ge=-1)
    """Age up to which records are kept (ms); -1 or "none": for ever. Whole segments go: their age
    counts from when they are full, or `segment_age_max_ms` old."""
    retention_by: Reloadable[Literal["append", "record"]] = "append"
    """Since when a record has its age: `append`, by the broker's clock; `record`, by the timestamp
    that its producer gave: records older than `retention_ms` then go as soon as their segment is
    sealed."""
    cleanup: Reloadable[Literal["delete", "compact", "compact,delete"]] = "delete"
    """`delete` obeys retention; `compact` keeps the latest value of every key."""
    tombstone_retention_ms: Reloadable[int] = Field(default=24 * 60 * 60 * 1000, ge=0)
    """How long a record with a null value outlives compaction (ms)."""
    compression: Reloadable[Literal["producer", "none", "lz4", "zstd"]] = "producer"
    """Compression of stored batches; `producer`: as they come."""
    batch_max_bytes: Reloadable[int] = Field(
        default=16 * 1024 * 1024, ge=1024, le=256 * 1024 * 1024
    )
    """Largest record batch accepted (bytes)."""
    timestamp_ahead_max_ms: Reloadable[Unlimited] = Field(default=24 * 60 * 60 * 1000, ge=-1)
    """How far a record's timestamp may be ahead of the broker's clock (ms); -1 or "none": any.
    Records from before 1970 are never taken."""


class TransactionSettings(Section):
    """Staged batches and transactions."""

    staged_max_bytes: Reloadable[int] = Field(default=4 * 1024 * 1024 * 1024, ge=1024 * 1024)
    """Batches that are staged and not committed, of all sinks and transactions together (bytes)."""
    owner_max_bytes: Reloadable[int] = Field(default=2 * 1024 * 1024 * 1024, ge=1024 * 1024)
    """The same for one sink or transactional id (bytes)."""
    owner_batches_max: Reloadable[int] = Field(default=100_000, ge=1, le=10_000_000)
    """Batches that one sink or transactional id may have staged."""
    owners_max: int = Field(default=10_000, ge=1)
    """Sinks and transactional ids that are known at a time."""
    user_share_max: float = Field(default=0.5, gt=0, le=1)
    """Share of `owners_max` that one user may take up; 1: everything. Anonymous clients count as
    one user, which may have everything until a user with a name comes."""
    sink_timeout_ms: Reloadable[int] = Field(default=60 * 60 * 1000, ge=1000)
    """What a sink has staged is forgotten when nothing was added to it for so long (ms)."""
    transaction_timeout_ms: Reloadable[int] = Field(default=60_000, ge=100)
    """The same for a transaction that asks for no other time (ms)."""
    timeout_max_ms: Reloadable[int] = Field(default=24 * 60 * 60 * 1000, ge=1000)
    """Longest time that a client may ask for (ms)."""
    transaction_expiry_ms: Reloadable[int] = Field(default=7 * 24 * 60 * 60 * 1000, ge=60_000)
    """A transactional id that is not used for so long is forgotten (ms); sinks never are."""
    commit_wait_ms: Reloadable[int] = Field(default=10_000, ge=100)
    """A commit is answered after this time at the latest, applied or not: it is decided (ms)."""


class ScheduleSettings(Section):
    """Records that are delivered later."""

    batches_max: Reloadable[int] = Field(default=100_000, ge=1, le=10_000_000)
    """Batches that may wait for their time; a record that is sent alone is a batch."""
    bytes_max: Reloadable[int] = Field(default=1024 * 1024 * 1024, ge=1024 * 1024)
    """The same in bytes."""
    horizon_ms: Reloadable[int] = Field(default=366 * 24 * 60 * 60 * 1000, ge=1000)
    """How far ahead a record may be scheduled (ms)."""
    remembered_ms: Reloadable[int] = Field(default=10 * 60 * 1000, ge=1000)
    """How long the id of a delivered or cancelled record is remembered, so that a repeated request
    does not schedule it again (ms)."""


class InterceptorSettings(Section):
    """Interceptors of plugins: how long a call may take, and when one is no longer called."""

    budget_ms: Reloadable[int] = Field(default=100, ge=1)
    """A call may take so long (ms): nothing else happens on the node meanwhile."""
    overruns_max: Reloadable[int] = Field(default=10, ge=0, le=1000)
    """A plugin whose calls took longer so often within a minute is quarantined; 0: never."""
    failures_max: Reloadable[int] = Field(default=20, ge=0, le=1000)
    """A plugin that failed so often in a row for a topic is quarantined for that topic; 0: never.
    Failures are exceptions and columns that cannot be stored, not refusals in words of its own."""
    cool_down_ms: Reloadable[int] = Field(default=30_000, ge=100)
    """How long a quarantine lasts before the plugin is tried again, with the next records (ms)."""
    fail_open: Reloadable[list[str]] = []
    """Plugins without which records are stored while they are quarantined, unseen by them. Those of
    the others are refused meanwhile."""


class TelemetrySettings(Section):
    """OpenTelemetry."""

    prometheus: bool = True
    """Whether the HTTP admin serves `/metrics` in Prometheus' text format."""
    otlp_endpoint: str = ""
    """Where metrics are pushed by OTLP, such as `http://127.0.0.1:4318/v1/metrics`; empty: where
    the variables `OTEL_EXPORTER_OTLP_*` say if `OTEL_METRICS_EXPORTER` is `otlp`, else nowhere.
    Needs `pip install lakemq[otlp]`."""
    otlp_interval_ms: int = Field(default=0, ge=0)
    """Time between two pushes (ms); 0: what `OTEL_METRIC_EXPORT_INTERVAL` says, else a minute."""
    trace_ratio: ReloadableWhileOn[float] = Field(default=0.0, ge=0, le=1)
    """Traces are on where this is above 0: records whose sender records a trace
    (`traceparent`) are followed through the broker, and so is this share of the batches whose
    senders say nothing. Spans go to where the variables `OTEL_EXPORTER_OTLP_*` say. Needs
    `pip install lakemq[otlp]`."""
    trace_spans_max_per_s: int = Field(default=1_000, ge=1)
    """Most spans of this node, whatever clients ask for (spans/s)."""
