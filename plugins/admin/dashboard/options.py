"""What the dashboard is started with."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from lakemq.broker_core.api.errors import ConfigError
from lakemq.broker_core.api.hosts import is_loopback

SECRET: Final = "DASHBOARD_SECRET"
"""`LAKEMQ_DASHBOARD_SECRET`: see `DashboardOptions.known_by`."""


@dataclass(frozen=True)
class Credentials:
    """Of a user of the broker. Empty: anonymous."""

    username: str = ""
    password: str = field(default="", repr=False)
    host: str = ""
    """Address of the visitor, for the broker's own rules and its audit log."""


@dataclass(frozen=True)
class DashboardOptions:
    """Where it listens, and whom it asks."""

    api: str
    """URL of a node's admin API, without a path."""
    host: str = "127.0.0.1"
    port: int = 9705
    """0: one that the system chooses."""
    tls_cert: str = ""
    tls_key: str = ""
    """Files (PEM) of the dashboard's own certificate; both or none."""
    api_tls: ssl.SSLContext | None = None
    """For an API of https."""
    insecure: bool = False
    """Take a host that other machines reach without TLS."""
    hosts: Sequence[str] = ()
    """DNS names (of a `Host` header) under which it is reached, beside
    `localhost` and addresses."""
    proxies: Sequence[str] = ()
    """Addresses and networks of servers before it, whose `X-Forwarded-For` is believed."""
    connections_max: int = 512
    """Connections at a time, shared as the admin API's are."""
    unauthenticated_timeout_ms: int = 10_000
    """How long a connection without a login may be without an answer."""
    known_by: str = field(default="", repr=False)
    """A secret of the node that started it: by it the node believes what addresses visitors have.
    Empty: its `proxies` have to name this dashboard's."""
    poller: Credentials = Credentials()
    """As whom figures for plots are asked for; empty: as who is logged in."""

    @property
    def is_local(self) -> bool:
        """Whether this machine alone can reach it."""
        return is_loopback(self.host)

    @property
    def scheme(self) -> str:
        """Of its own address."""
        return "https" if self.tls_cert else "http"

    def check(self) -> None:
        """Raises ConfigError."""
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigError("dashboard: the certificate and its key must be given together")
        if not (self.is_local or self.tls_cert or self.insecure):
            raise ConfigError(
                f"dashboard: host {self.host} is reached by other machines: give a certificate "
                "(--serve-cert, --serve-key), or --insecure where another server has TLS before it"
            )
