"""Section `[plugins.mqtt]` of the TOML file."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from lakemq.broker_core.api.settings import (
    PluginSettings,
    Port,
    Reloadable,
    ReloadableIf,
    Section,
    Unlimited,
)
from lakemq.broker_core.api.state.internal_topics import users_topic
from lakemq.broker_core.api.types import TopicConfig
from lakemq.plugins.mqtt.limits import Limits
from lakemq.plugins.mqtt.routing.bans import BanRules
from lakemq.plugins.mqtt.routing.bindings import Binding
from lakemq.plugins.mqtt.routing.delayed import DelayLimits
from lakemq.plugins.mqtt.routing.rewrite import RewriteRule
from lakemq.plugins.mqtt.state.delivery import DeliveryLimits
from lakemq.plugins.mqtt.wire.packets import NO_LOCAL
from lakemq.plugins.mqtt.wire.reasons import MqttError
from lakemq.plugins.mqtt.wire.topics import LEVELS_MAX, check_topic_filter

_LONGEST_S = 0xFFFF_FFFF


class BindingSettings(Section):
    """Publishes to these topic names are stored in that topic. The first match counts."""

    filter: str = "#"
    """MQTT topic filter. `#` leaves out names that begin with `$`."""
    topic: str = "mqtt"
    """Topic that takes the records; created if absent."""
    key: Literal["topic_name", "client_id"] = "topic_name"
    """What the records' key is: the MQTT topic name, or the publisher's client id."""
    qos0: bool = False
    """Whether QoS 0 is stored too; otherwise it passes through memory alone."""
    partitions: int | None = Field(default=None, ge=1, le=10_000)
    """Partitions of the topic when it is created here; absent: as in `[topics]`. What is said here
    about a topic that exists already changes nothing."""
    retention_ms: Unlimited | None = Field(default=None, ge=-1)
    """The same for how long its records are kept (ms); -1 or "none": for ever."""
    retention_bytes: Unlimited | None = Field(default=None, ge=-1)
    """The same for how much of each partition is kept; -1 or "none": everything."""
    cleanup: Literal["delete", "compact", "compact,delete"] | None = None
    """The same for what is cleaned away; `compact` keeps the last value of each topic name (or
    client)."""

    @field_validator("filter")
    @classmethod
    def _well_formed(cls, value: str) -> str:
        return _filter(value)

    @field_validator("topic")
    @classmethod
    def _a_users(cls, value: str) -> str:
        return users_topic(value)

    def topic_config(self, defaults: TopicConfig) -> TopicConfig:
        """What the topic is created with."""
        said: dict[str, Any] = {}
        for name in ("retention_ms", "retention_bytes"):
            value = getattr(self, name)
            if value is not None:
                said[name] = None if value == -1 else value
        if self.cleanup is not None:
            said["cleanup"] = self.cleanup
        return replace(defaults, **said)

    def binding(self) -> Binding:
        """The binding that this section describes."""
        return Binding(self.filter, self.topic, self.key == "client_id", self.qos0)


class ListenerSettings(Section):
    """A further address that clients connect to."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,30}$")
    """Name in messages and in the list of addresses, like `mqtts`."""
    transport: Literal["tcp", "websocket", "unix"] = "tcp"
    """What carries MQTT: TCP, WebSocket over TCP, or a unix socket. A certificate makes it TLS."""
    host: str = "127.0.0.1"
    """Address to bind to (`tcp`, `websocket`)."""
    port: Port = 0
    """TCP port; 0: the system chooses one."""
    path: str = "/mqtt"
    """Path of the WebSocket in its URL; with `unix`, the file of the socket."""
    unix_mode: int = Field(default=0o660, ge=0, le=0o777)
    """Permissions of the unix socket's file."""
    tls_cert: str = ""
    """File with the server's certificate chain (PEM); not empty: TLS. Renewed files are taken into
    use within 10 s, for new connections, without a restart."""
    tls_key: str = ""
    """File with the certificate's private key (PEM)."""
    tls_ca: str = ""
    """File with the certificates of the authorities that sign client certificates (PEM)."""
    client_certificate: Literal["none", "optional", "required"] = "none"
    """Whether clients show a certificate of their own. Its common name is then the user, ahead of
    what CONNECT says."""
    proxy_from: list[str] = Field(default_factory=list)
    """Addresses or networks of load balancers that put a PROXY header (version 1 or 2) in front of
    each connection. Not empty: only they may connect."""
    origins: list[str] = Field(default_factory=list)
    """Origins of web pages that may open a WebSocket, beside those of the same host; `*`: any."""
    connections_max: int = Field(default=100_000, ge=1)
    """Most connections at once."""
    connects_max_per_s: int = Field(default=0, ge=0)
    """Most new connections a second; beyond, they are closed at once. 0: without limit."""
    publishes_max_per_s: int = Field(default=0, ge=0)
    """Publishes a second of all its clients together, above which they are read more slowly; 0: no
    limit."""
    bytes_max_per_s: int = Field(default=0, ge=0)
    """The same in bytes."""

    @field_validator("proxy_from")
    @classmethod
    def _networks(cls, value: list[str]) -> list[str]:
        for each in value:
            ipaddress.ip_network(each)
        return value

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("tls_cert and tls_key must be set together")
        if self.client_certificate != "none" and not (self.tls_ca and self.tls_cert):
            raise ValueError("client_certificate needs tls_cert, tls_key and tls_ca")
        if self.tls_cert and (self.proxy_from or self.transport == "unix"):
            raise ValueError("TLS goes neither with proxy_from nor with transport unix")
        if self.transport == "unix" and self.proxy_from:
            raise ValueError("proxy_from does not go with transport unix")
        return self


_TLS_FILES: Final = ("tls_cert", "tls_key", "tls_ca")


def _same_but_tls_files(
    before: Sequence[ListenerSettings], after: Sequence[ListenerSettings]
) -> bool:
    """Whether only paths of TLS files differ, and all that were there still are."""

    def kept(settings: ListenerSettings) -> ListenerSettings:
        shown = {name: "x" if getattr(settings, name) else "" for name in _TLS_FILES}
        return settings.model_copy(update=shown)

    return [*map(kept, before)] == [*map(kept, after)]


class RewriteSettings(Section):
    """A rule that rewrites names and filters of clients. The first that matches counts."""

    filter: str
    """What is rewritten: a topic filter."""
    target: str
    """What it becomes; `$1`, `$2`, ... stand for what the wildcards took."""
    publish: bool = True
    """Whether topic names of publishes are rewritten."""
    subscribe: bool = True
    """Whether filters of subscriptions are rewritten."""

    @field_validator("filter")
    @classmethod
    def _well_formed(cls, value: str) -> str:
        return _filter(value)

    @field_validator("target")
    @classmethod
    def _a_name(cls, value: str) -> str:
        if not value or set(value) & set("+#\0"):
            raise ValueError("a target is a topic name, without wildcards")
        return value

    def rule(self) -> RewriteRule:
        """The rule that this section describes."""
        return RewriteRule(self.filter, self.target, self.publish, self.subscribe)


class AutoSubscriptionSettings(Section):
    """What every client is subscribed to when it connects."""

    filter: str
    """Topic filter; `%c` and `%u` stand for the client's id and user."""
    qos: int = Field(default=0, ge=0, le=2)
    """Highest QoS of delivery."""
    no_local: bool = False
    """Whether a client's own publishes are left out."""

    @field_validator("filter")
    @classmethod
    def _well_formed(cls, value: str) -> str:
        return _filter(value)

    def options(self) -> int:
        """The options byte of SUBSCRIBE: QoS and no local."""
        return self.qos | (NO_LOCAL if self.no_local else 0)


def _filter(value: str) -> str:
    try:
        return check_topic_filter(value)
    except MqttError as error:
        raise ValueError(str(error)) from None


class MqttSettings(PluginSettings):
    """MQTT 3.1, 3.1.1 and 5."""

    host: str = "127.0.0.1"
    """Address to bind to."""
    port: Port = 1883
    """TCP port."""
    tcp: bool = True
    """Whether the listener at `host` and `port` is on; `listeners` adds others."""
    listeners: Annotated[list[ListenerSettings], ReloadableIf(_same_but_tls_files, "TLS files")] = (
        Field(default_factory=list)
    )
    """Further listeners: TLS, WebSocket, unix socket, behind a load balancer."""
    bindings: list[BindingSettings] = Field(default_factory=lambda: [BindingSettings()])
    """Which topic name is stored in which topic; without a match: in none, memory alone."""
    packet_max_bytes: int = Field(default=1024 * 1024, ge=256, le=268_435_460)
    """Largest packet taken from a client (bytes)."""
    connect_max_bytes: int = Field(default=64 * 1024, ge=256, le=268_435_460)
    """Largest CONNECT taken (bytes), will and password included; so is each packet of a client that
    is not let in yet. `packet_max_bytes` holds besides."""
    topic_levels_max: int = Field(default=LEVELS_MAX, ge=8, le=65_536)
    """Most levels of a topic name or filter. A publish beyond it is refused (0x90), a subscription
    too (0x8F)."""
    connections_max: Reloadable[int] = Field(default=100_000, ge=1)
    """Most network connections at once."""
    peer_connections_max: Reloadable[int] = Field(default=0, ge=0)
    """Most connections of one address (IPv6: one /64) to each listener; behind a proxy, of the
    address that it tells. 0: without a bound of its own."""
    unauthenticated_max: Reloadable[int] = Field(default=1000, ge=1)
    """Most connections to each listener that are not let in yet, and no more than half of its
    `connections_max`. Others wait in the system's queue until there is room."""
    unauthenticated_peer_max: Reloadable[int] = Field(default=500, ge=0)
    """Most of them from one address; beyond, they are closed at once. 0: without a bound of its
    own."""
    unauthenticated_memory_max_bytes: Reloadable[int] = Field(
        default=32 * 1024 * 1024, ge=2 * 1024 * 1024
    )
    """Most memory that they may take at each listener: half of it for the connections themselves
    (about 8 KiB each, 56 KiB with TLS, 320 KiB with TLS where uvloop is not used), half for what
    they sent; when that is full, who sent most is dropped."""
    sessions_max: Reloadable[int] = Field(default=1_000_000, ge=1)
    """Most sessions, connected or not."""
    client_id_max_bytes: int = Field(default=256, ge=23, le=65_535)
    """Longest client identifier (bytes)."""
    keep_alive_max_s: Reloadable[int] = Field(default=0, ge=0, le=65_535)
    """Longest keep-alive interval granted to MQTT 5 clients (s); 0: whatever they ask."""
    connect_timeout_ms: int = Field(default=10_000, ge=100)
    """Time from accepting a connection to its CONNECT (ms)."""
    session_expiry_max_s: Reloadable[int] = Field(default=7 * 24 * 3600, ge=0, le=_LONGEST_S)
    """Longest time a session outlives its connection (s); 4294967295: for ever. Sessions of 3.1.1
    clients that are not clean get this."""
    session_of_another_user: Reloadable[Literal["refuse", "replace"]] = "refuse"
    """What becomes of a client whose client id has a session, connected or kept, of another user:
    it is refused (0x87, before MQTT 5 return code 5), or that session ends and it gets a new one.
    Anonymous clients count as one user."""
    user_share_max: float = Field(default=0.5, gt=0, le=1)
    """Share of what all clients have together (`sessions_max`, retained messages, delayed
    publishes, `replays_max`, shapes of filters) that one user may have; 1: everything. Anonymous
    clients count as one user, which may have everything until a user with a name connects."""
    durable: bool = True
    """Whether sessions that outlive their connection, what waits for them, and retained messages
    survive a crash of the broker."""
    checkpoint_ms: Reloadable[int] = Field(default=5_000, ge=100)
    """How often is kept what clients acknowledged and what is retained (ms). After a crash, what
    was acknowledged since is delivered again."""
    checkpoint_records: int = Field(default=200_000, ge=1000)
    """Most records of bound topics that a restart has to read again for each partition."""
    receive_max: int = Field(default=1000, ge=1, le=65_535)
    """Most QoS 1 and 2 publishes of an MQTT 5 client that are not finished."""
    receive_maximum_exceeded: Literal["slow", "disconnect"] = "slow"
    """What happens to an MQTT 5 client that sends more than `receive_max` at once: nothing is read
    from it until fewer are being stored, or it is disconnected (0x93)."""
    inflight_max: int = Field(default=1000, ge=1, le=65_535)
    """Most QoS 1 and 2 publishes sent to one client and not acknowledged."""
    topic_alias_max: int = Field(default=32, ge=0, le=65_535)
    """Most topic aliases that a client may set."""
    sent_topic_alias_max: int = Field(default=32, ge=0, le=65_535)
    """Most topic aliases that the broker sets for one client, if the client takes them."""
    subscriptions_max: Reloadable[int] = Field(default=10_000, ge=1)
    """Most subscriptions of one session."""
    replays_max: Reloadable[int] = Field(default=1000, ge=0)
    """Most subscriptions of connected clients that read history (`$replay/...`) at once."""
    delayed_max_s: Reloadable[int] = Field(default=4_294_967, ge=0)
    """Longest delay of a publish to `$delayed/<seconds>/...` (s); longer ones are refused."""
    delayed_count_max: Reloadable[int] = Field(default=100_000, ge=0)
    """Most publishes that are delayed at once."""
    delayed_max_bytes: Reloadable[int] = Field(default=64 * 1024 * 1024, ge=0)
    """Most bytes of them; they are held in memory beside the journal."""
    shared_strategy: Literal[
        "round_robin", "random", "sticky", "hash_client", "hash_topic", "least_inflight"
    ] = "round_robin"
    """Who of a `$share` group gets the next publish."""
    queue_count_max: int = Field(default=10_000, ge=1)
    """Most QoS 1 and 2 publishes that come and wait for one session while its client is away. Of a
    connected client, `queue_max_bytes` alone counts."""
    queue_max_bytes: int = Field(default=64 * 1024 * 1024, ge=1024)
    """Most bytes that wait for one session, in memory or in the journal: topic name, payload,
    properties, and 240 for each publish."""
    queue_expiry_s: int = Field(default=0, ge=0)
    """Longest time that a QoS 1 or 2 publish waits for a session (s), whatever its own expiry;
    older ones are dropped when it is their turn. 0: without limit."""
    queue_full: Literal["drop_oldest", "drop_newest", "disconnect"] = "drop_oldest"
    """What happens when a session's queue is full."""
    retained_count_max: Reloadable[int] = Field(default=100_000, ge=0)
    """Most retained messages."""
    retained_max_bytes: Reloadable[int] = Field(default=256 * 1024 * 1024, ge=0)
    """Most bytes of retained messages."""
    sparkplug_aware: bool = False
    """Whether birth messages of Sparkplug B are retained under `$sparkplug/certificates/...`, and
    no client may publish to `$sparkplug/...` (docs/sparkplug.md)."""
    write_buffer_max_bytes: int = Field(default=4 * 1024 * 1024, ge=4096)
    """Bytes waiting for one socket above which its client counts as slow: QoS 0 is dropped, QoS 1
    and 2 wait in its session's queue."""
    appends_inflight_max: Reloadable[int] = Field(default=10_000, ge=1)
    """Publishes of one connection being stored above which nothing more is read from it."""
    appends_inflight_max_bytes: Reloadable[int] = Field(default=8 * 1024 * 1024, ge=1024)
    """The same in bytes."""
    publishes_max_per_s: Reloadable[int] = Field(default=0, ge=0)
    """Publishes a second of one connection above which it is read more slowly; 0: no limit."""
    bytes_max_per_s: Reloadable[int] = Field(default=0, ge=0)
    """The same in bytes."""
    banned_client_ids: Reloadable[list[str]] = Field(default_factory=list)
    """Client ids that may not connect."""
    banned_users: Reloadable[list[str]] = Field(default_factory=list)
    """User names that may not connect."""
    banned_hosts: Reloadable[list[str]] = Field(default_factory=list)
    """Addresses and networks that may not connect."""
    flapping_connects: Reloadable[int] = Field(default=0, ge=0)
    """Connects of one client id within `flapping_window_ms` above which it is banned; 0: never."""
    flapping_window_ms: Reloadable[int] = Field(default=60_000, ge=1000)
    """Time in which connects are counted (ms)."""
    flapping_ban_ms: Reloadable[int] = Field(default=300_000, ge=1000)
    """How long a client that connects too often is banned (ms)."""
    rewrites: list[RewriteSettings] = Field(default_factory=list)
    """Rules that rewrite topic names and filters."""
    auto_subscriptions: list[AutoSubscriptionSettings] = Field(default_factory=list)
    """What every client is subscribed to."""
    slow_ms: Reloadable[int] = Field(default=500, ge=0)
    """Time to an acknowledgement, or with a full socket, from which on a client is listed as slow
    (ms); 0: never."""
    slow_count_max: Reloadable[int] = Field(default=100, ge=1, le=10_000)
    """Most clients in that list; the slowest stay."""
    slow_expiry_ms: Reloadable[int] = Field(default=300_000, ge=1000)
    """How long a client stays in that list (ms)."""
    decisions_max: int = Field(default=1_000, ge=0, le=100_000)
    """Publishes that were refused, deliveries that were dropped and subscriptions that changed, the
    newest of each kind, that `lakemq explain` can tell of; 0: none."""
    system_topics_interval_s: Reloadable[int] = Field(default=10, ge=0)
    """How often `$SYS` topics are published (s); 0: never."""
    access_cache_ms: Reloadable[int] = Field(default=5_000, ge=0)
    """How long a connection remembers where it may publish (ms)."""
    refused_publish_disconnects: Reloadable[bool] = True
    """Whether a 3.1.1 client that publishes where it may not is disconnected; otherwise its publish
    is acknowledged and dropped, since 3.1.1 has no third way."""
    refused_subscribe_reason: Reloadable[Literal["not_authorized", "unspecified_error"]] = (
        "not_authorized"
    )
    """What SUBACK tells an MQTT 5 client that may not subscribe: 0x87 or 0x80. Older clients are
    told 0x80, the only failure they know."""
    response_information: str = ""
    """Told to MQTT 5 clients that ask for response information; empty: nothing."""
    server_reference: str = Field(default="", max_length=1024)
    """Other servers, like `b.example.org:1883`, several with spaces between; empty: none."""
    redirect: Literal["on_stop", "temporary", "permanent"] = "on_stop"
    """When MQTT 5 clients are sent to `server_reference`: when this node stops, or whenever they
    connect, as use another server (`temporary`) or server moved (`permanent`)."""

    @field_validator("banned_hosts")
    @classmethod
    def _banned_networks(cls, value: list[str]) -> list[str]:
        for each in value:
            ipaddress.ip_network(each)
        return value

    def ban_rules(self) -> BanRules:
        """Configured bans, and bans for flapping."""
        return BanRules(
            frozenset(self.banned_client_ids),
            frozenset(self.banned_users),
            tuple(ipaddress.ip_network(each) for each in self.banned_hosts),
            self.flapping_connects,
            self.flapping_window_ms,
            self.flapping_ban_ms,
        )

    @model_validator(mode="after")
    def _leads_somewhere(self) -> Self:
        if self.redirect != "on_stop" and not self.server_reference:
            raise ValueError(f"redirect = {self.redirect} needs server_reference")
        return self

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [each.name for each in self.all_listeners()]
        if len(set(names)) != len(names):
            raise ValueError("two listeners have one name")
        return self

    def all_listeners(self) -> list[ListenerSettings]:
        """The plain TCP listener, unless `tcp` is off, and the further ones."""
        first = ListenerSettings(
            name="mqtt",
            host=self.host,
            port=self.port,
            connections_max=self.connections_max,
        )
        return [first, *self.listeners] if self.tcp else list(self.listeners)

    def limits(self) -> Limits:
        """Bounds of connections and sessions; the settings have the names of its fields."""
        return Limits(**{name: getattr(self, name) for name in Limits.__dataclass_fields__})

    def delay_limits(self) -> DelayLimits:
        """Bounds of delayed publishes."""
        return DelayLimits(self.delayed_max_s, self.delayed_count_max, self.delayed_max_bytes)

    def delivery_limits(self) -> DeliveryLimits:
        """Bounds of what is on its way to clients."""
        return DeliveryLimits(
            self.inflight_max,
            self.queue_count_max,
            self.queue_max_bytes,
            self.queue_full,
            1000 * self.queue_expiry_s,
        )
