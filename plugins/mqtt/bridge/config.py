"""Section `[plugins.bridge]`."""

from __future__ import annotations

from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from lakemq.broker_core.api.settings import PluginSettings, Section
from lakemq.broker_core.api.state.internal_topics import users_topic
from lakemq.plugins.mqtt.bridge.rules import Rule
from lakemq.plugins.mqtt.bridge.topic_names import check_filter, check_prefix

_PORTS = {"mqtt": 1883, "mqtts": 8883}


class RuleSettings(Section):
    """Names that cross the bridge. The first rule that matches counts."""

    direction: Literal["out", "in", "both"]
    """`out`: records here go to the remote broker; `in`: its publishes come here."""
    filter: str
    """Topic filter, without the prefixes."""
    local_prefix: str = ""
    """What stands before the name here, like `site-7/`."""
    remote_prefix: str = ""
    """What stands before the name at the remote broker."""
    qos: int = Field(default=1, ge=0, le=2)
    """QoS on the link, whatever the record came with: 1 at least once, 2 exactly once."""
    topic: str = "mqtt"
    """The topic whose records go out, or that takes what comes in."""

    @field_validator("filter")
    @classmethod
    def _well_formed(cls, value: str) -> str:
        return check_filter(value)

    @field_validator("topic")
    @classmethod
    def _a_users(cls, value: str) -> str:
        return users_topic(value)

    @field_validator("local_prefix", "remote_prefix")
    @classmethod
    def _a_prefix(cls, value: str) -> str:
        return check_prefix(value)

    def rule(self) -> Rule:
        """The rule that this section describes."""
        return Rule(
            self.direction != "in",
            self.direction != "out",
            self.filter,
            self.local_prefix,
            self.remote_prefix,
            self.qos,
            self.topic,
        )


class LinkSettings(Section):
    """A remote broker and what crosses to and from it."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,30}$")
    """Name in messages, metrics and the kept state; keep it, or the link starts over."""
    url: str
    """`mqtt://host:port`, or `mqtts://host:port` for TLS."""
    client_id: str = Field(default="", max_length=256)
    """Client id at the remote broker, the same on all nodes of a cluster; empty: `lakemq-` with the
    cluster's id and the link's name."""
    username: str = ""
    """User at the remote broker; empty: none."""
    password_env: str = ""
    """Environment variable that holds the password."""
    tls_ca: str = ""
    """File with the authorities that sign the remote broker's certificate (PEM); empty: those of
    the system."""
    tls_cert: str = ""
    """File with a certificate of our own (PEM), for brokers that ask for one."""
    tls_key: str = ""
    """File with its private key (PEM)."""
    keep_alive_s: int = Field(default=30, ge=1, le=65_535)
    """A remote broker that is silent for this long counts as dead (s)."""
    connect_timeout_ms: int = Field(default=10_000, ge=100)
    """How long connecting, and each answer to a subscription, may take (ms)."""
    ack_timeout_ms: int = Field(default=20_000, ge=500)
    """A publish without an answer for so long ends the link, which then reconnects (ms)."""
    retry_min_ms: int = Field(default=500, ge=10)
    """First wait before connecting again (ms); it doubles, with jitter, ..."""
    retry_max_ms: int = Field(default=60_000, ge=10)
    """... up to this (ms)."""
    inflight_max: int = Field(default=500, ge=1, le=10_000)
    """Most publishes under way to the remote broker that it has not answered."""
    inflight_qos2_max: int = Field(default=20, ge=1, le=10_000)
    """The same where a rule sends with QoS 2. Mosquitto ends a connection that has more than its
    `max_inflight_messages`, 20 unless it is told otherwise."""
    inflight_max_bytes: int = Field(default=8 * 1024 * 1024, ge=1024)
    """Most bytes of them, and of what comes in and is not durable yet."""
    packet_max_bytes: int = Field(default=16 * 1024 * 1024, ge=1024, le=268_435_455)
    """Largest packet taken from the remote broker; a larger one ends the link."""
    start: Literal["latest", "earliest"] = "latest"
    """Where a new link begins to read its topics: at their end, or at what is kept of them."""
    commit_ms: int = Field(default=500, ge=10)
    """How often it is written down what the remote broker has (ms); after a crash QoS 1 repeats
    what it got since."""
    bridge_flag: bool = True
    """Tell the remote broker that this is a bridge: Mosquitto then sends nothing back that came
    from here. Where it is not understood, the link goes on without."""
    no_echo_clients: list[str] = Field(default_factory=list)
    """Records that these client ids published do not go out. Name the remote broker's own bridge
    here when both sides bridge to each other."""
    rules: list[RuleSettings] = Field(min_length=1)
    """What crosses."""

    @field_validator("url")
    @classmethod
    def _a_broker(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in _PORTS or not parts.hostname or parts.username or parts.password:
            raise ValueError(
                "give mqtt://host:port or mqtts://host:port; users and passwords have their own "
                "settings"
            )
        _ = parts.port  # ValueError when it is no port
        return value

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("tls_cert and tls_key must be set together")
        if (self.tls_cert or self.tls_ca) and not self.secure:
            raise ValueError("tls_ca and tls_cert need a URL that begins with mqtts://")
        if self.password_env and not self.username:
            raise ValueError("password_env needs username")
        if self.retry_max_ms < self.retry_min_ms:
            raise ValueError("retry_max_ms is smaller than retry_min_ms")
        return self

    @property
    def secure(self) -> bool:
        """Whether the URL asks for TLS."""
        return urlsplit(self.url).scheme == "mqtts"

    @property
    def host(self) -> str:
        """Host of the URL."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """Port of the URL, or its scheme's default."""
        parts = urlsplit(self.url)
        return parts.port or _PORTS[parts.scheme]


class BridgeSettings(PluginSettings):
    """Bridges to remote MQTT brokers; without links it does nothing."""

    links: list[LinkSettings] = Field(default_factory=list)
    """Remote brokers."""

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [link.name for link in self.links]
        if len(set(names)) != len(names):
            raise ValueError("two links have the same name")
        return self
