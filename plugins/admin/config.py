"""Section `[plugins.admin]`."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from lakemq.broker_core.api.settings import PluginSettings, Port, Reloadable, ReloadableWhileOn


class AdminSettings(PluginSettings):
    """The admin API: health, metrics, and everything that operators do, over HTTP. The section may
    be written `[admin]` too."""

    host: str = ""
    """Address to bind to; empty: `node.host`."""
    port: Port = 9703
    """TCP port."""
    tls_cert: ReloadableWhileOn[str] = ""
    """File with the server's certificate chain (PEM); not empty: HTTPS. Renewed files are taken
    into use for new connections, without a restart."""
    tls_key: ReloadableWhileOn[str] = ""
    """File with the certificate's private key (PEM)."""
    insecure: bool = False
    """Take a `host` that other machines reach without TLS: passwords would travel in plain text."""
    hosts: Reloadable[list[str]] = Field(default_factory=list)
    """DNS names (of a `Host` header, without a port) under which callers without a login are
    answered; `localhost` and IP addresses always are. Others may be a web page's."""
    proxies: list[str] = Field(default_factory=list)
    """Addresses and networks of servers that pass requests on, like a reverse proxy, or a dashboard
    on another machine: their `X-Forwarded-For` is believed."""
    connections_max: int = Field(default=256, ge=4)
    """Connections at a time. One address (IPv6: one /64) has half of them, as have all that have
    not authenticated; of these one address has half again."""
    unauthenticated_timeout_ms: int = Field(default=10_000, ge=100)
    """A connection that has not authenticated is closed when no request of it was answered for so
    long (ms)."""
    body_max_bytes: int = Field(default=1024 * 1024, ge=64 * 1024, le=16 * 1024 * 1024)
    """Largest body of a request, and most that one answer holds of records (bytes)."""

    dashboard: bool = False
    """Serve the [dashboard](dashboard.md) too, in a process of its own beside the node; needs
    `lakemq[dashboard]`. It uses `tls_cert`, `tls_key`, `insecure`, `hosts`, `proxies`,
    `connections_max` and `unauthenticated_timeout_ms` as the API does."""
    dashboard_host: str = ""
    """Address that the dashboard binds to; empty: the API's."""
    dashboard_port: Port = 9705
    """Its TCP port."""
    dashboard_api: str = ""
    """URL at which the dashboard asks the API, as with TLS: a name of the certificate. Empty: the
    address that the API listens on."""
    dashboard_ca: str = ""
    """File with authorities (PEM) that may have signed the API's certificate; empty: those of the
    system."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("tls_cert and tls_key must be set together")
        return self
