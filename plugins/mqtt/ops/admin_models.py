"""What the admin API takes and answers about MQTT."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lakemq.broker_core.api.administration.routes import (
    Answer,
    Body,
    EveryQuery,
    Flag,
    OwnPageQuery,
)


class ClientRow(Answer):
    """An MQTT client in a list: its session, and its connection if it has one."""

    node: str
    client_id: str
    connected: bool
    principal: str
    peer_host: str | None
    protocol: str | None
    """`3.1`, `3.1.1` or `5.0`; null: not connected."""
    connected_ms: int | None
    """Since when (ms since 1970, UTC)."""
    subscriptions: int
    inflight: int
    """Sent and not acknowledged."""
    queued: int
    dropped: int
    """By its queue, since the session began."""


class Subscribed(Answer):
    """A subscription among those of a client."""

    qos: int
    identifier: int | None


class Counts(Answer):
    """One way of a connection."""

    bytes: int
    packets: int
    publishes: list[int]
    """By QoS: 0, 1, 2."""


class ClientAnswer(ClientRow):
    """All about one client; counts are those of its connection."""

    session_expiry_s: int | None
    session_ends_ms: int | None
    queued_bytes: int
    incoming_qos_2: int
    replays: list[str]
    filters: dict[str, Subscribed]
    """Topic filter -> its subscription."""
    listener: str | None = None
    keep_alive_ms: int | None = None
    slow: bool | None = None
    being_stored: int | None = None
    received: Counts | None = None
    sent: Counts | None = None
    dropped_qos_0: int | None = None


class SubscriptionRow(Answer):
    """A subscription."""

    filter: str
    qos: int
    no_local: bool
    retain_as_published: bool
    identifier: int | None


class ClientQuery(OwnPageQuery):
    """Parameters of the list of clients."""

    connected: Flag | None = None
    """Only clients that are, or are not."""
    prefix: str = Field(default="", max_length=1024)
    """Only client ids that begin so."""


class KickQuery(EveryQuery):
    """How a client is disconnected."""

    session: Flag = False
    """End its session, too."""


class Kicked(Answer):
    """What became of a client."""

    disconnected: bool
    """It was connected."""
    session_ended: bool


class SlowRow(Answer):
    """A slow subscriber."""

    node: str
    client_id: str
    latency_ms: int
    topic: str
    at_ms: int
    count: int


class BanRow(Answer):
    """A ban."""

    node: str
    kind: str
    value: str
    until_ms: int | None
    """Null: for ever."""
    why: str


class BanMade(BanRow):
    """A ban that was just made."""

    disconnected: int
    """Connections that it ended."""


class BanBody(Body):
    """Whom to ban."""

    kind: Literal["client_id", "user", "host"]
    """`host`: an address or a network."""
    value: str = Field(min_length=1, max_length=1024)
    seconds: int | None = Field(default=None, ge=1, le=10**9)
    """For how long; left out: for ever."""
    why: str = ""
    """For the list."""
