"""Settings of the journal: section `[plugins.journal]` of the TOML file."""

from __future__ import annotations

from pydantic import Field, SecretStr

from lakemq.broker_core.api.settings import PluginSettings, Reloadable

_MIB = 1024 * 1024


class JournalSettings(PluginSettings):
    """The journal, LakeMQ's storage engine."""

    flush_threads: int = Field(default=8, ge=1, le=256)
    """Threads that write and fsync; so many partitions are fsynced at the same time."""
    read_threads: int = Field(default=4, ge=1, le=256)
    """Threads that read what is no longer in memory."""
    unflushed_max_bytes: int = Field(default=64 * _MIB, ge=_MIB)
    """Appends of one partition that wait for the disk (bytes); more are refused, to be retried."""
    unflushed_total_max_bytes: int = Field(default=256 * _MIB, ge=_MIB)
    """The same over all partitions (bytes)."""
    tail_max_bytes: Reloadable[int] = Field(default=8 * _MIB, ge=0)
    """Newest batches of each partition that are held in memory for readers (bytes)."""
    tail_total_max_bytes: Reloadable[int] = Field(default=256 * _MIB, ge=0)
    """The same over all partitions (bytes), shared evenly among them."""
    index_interval_bytes: int = Field(default=64 * 1024, ge=1024)
    """Distance of index entries in a segment (bytes)."""
    checkpoint_interval_bytes: int = Field(default=8 * _MIB, ge=64 * 1024)
    """How much of a partition a start after a crash has to scan at most (bytes)."""
    free_min_bytes: Reloadable[int] = Field(default=64 * _MIB, ge=0)
    """Free space below which appends are refused, so that retention still can work (bytes)."""
    maintenance_interval_ms: Reloadable[int] = Field(default=10_000, ge=100)
    """How often space, segment age, retention and compaction are looked at (ms)."""
    scrub_max_bytes_per_s: int = Field(default=2 * _MIB, ge=0)
    """How fast sealed segments are read in search of damage (bytes per second); 0: not at all."""
    scrub_interval_ms: int = Field(default=7 * 24 * 60 * 60 * 1000, ge=1000)
    """Time from the begin of one such pass over all segments to the next (ms); longer where the
    rate asks for it."""
    producer_expiry_ms: Reloadable[int] = Field(default=7 * 24 * 60 * 60 * 1000, ge=60_000)
    """How long an idempotent producer that sends nothing is remembered (ms)."""
    producers_max: int = Field(default=100_000, ge=1)
    """Idempotent producers of one partition that are remembered; the longest silent go first."""
    compaction_keys_max: Reloadable[int] = Field(default=2_000_000, ge=1)
    """How many different keys one compaction holds in memory; what has more is done in steps."""
    compaction_dirty_ratio_min: Reloadable[float] = Field(default=0.5, ge=0, le=1)
    """Share of sealed bytes that must be new before a topic is compacted again."""
    compaction_lag_max_ms: Reloadable[int] = Field(default=24 * 60 * 60 * 1000, ge=0)
    """Age of the oldest new segment at which a topic is compacted whatever its share is (ms)."""
    tiering_url: str = ""
    """Object store for sealed segments: `s3://bucket/prefix`, `gs://`, `az://` (these need the
    extra `lakemq[tiering]`) or `file:///folder`; empty: none. Compacted and internal topics stay
    local."""
    tiering_options: dict[str, SecretStr] = Field(default_factory=dict)
    """What the store needs besides, such as `endpoint`, `region`, `access_key_id`,
    `secret_access_key`; what is not here is taken from the store's usual variables (`AWS_...`)."""
    tiering_local_bytes: Reloadable[int] = Field(default=-1, ge=-1)
    """Size up to which a partition keeps local files of segments that are in the object store
    (bytes); -1: without limit."""
    tiering_local_ms: Reloadable[int] = Field(default=24 * 60 * 60 * 1000, ge=-1)
    """Age up to which it keeps them (ms); -1: without limit."""
