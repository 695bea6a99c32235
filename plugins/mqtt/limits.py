"""Bounds of connections and sessions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lakemq.plugins.mqtt.wire.topics import LEVELS_MAX

SHARED_SUBSCRIPTIONS_MAX_BYTES: Final = 2 * 1024 * 1024
"""Filters of one session where nodes share sessions: its state goes from node to node as one."""
SHARED_INCOMING_MAX: Final = 20_000
"""QoS 2 publishes of one session that are not released, where nodes share sessions."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of connections and sessions; `config.py` says what each is for."""

    packet_max_bytes: int = 1024 * 1024
    connect_max_bytes: int = 64 * 1024
    topic_levels_max: int = LEVELS_MAX
    connections_max: int = 100_000
    sessions_max: int = 1_000_000
    client_id_max_bytes: int = 256
    keep_alive_max_s: int = 0
    connect_timeout_ms: int = 10_000
    session_expiry_max_s: int = 7 * 24 * 3600
    receive_max: int = 1000
    receive_maximum_exceeded: str = "slow"
    topic_alias_max: int = 32
    sent_topic_alias_max: int = 32
    subscriptions_max: int = 10_000
    replays_max: int = 1000
    appends_inflight_max: int = 10_000
    appends_inflight_max_bytes: int = 8 * 1024 * 1024
    publishes_max_per_s: int = 0
    bytes_max_per_s: int = 0
    access_cache_ms: int = 5_000
    session_of_another_user: str = "refuse"
    user_share_max: float = 0.5
    refused_publish_disconnects: bool = True
    refused_subscribe_reason: str = "not_authorized"
    response_information: str = ""
    server_reference: str = ""
    redirect: str = "on_stop"
    sparkplug_aware: bool = False
