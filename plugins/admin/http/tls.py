"""Certificate and key of the HTTP admin."""

from __future__ import annotations

import ssl

from lakemq.broker_core.api.errors import ConfigError
from lakemq.broker_core.api.hosts import is_loopback
from lakemq.broker_core.api.tls_files.server_context import watched_context
from lakemq.broker_core.api.tls_files.watched_files import WatchedFiles
from lakemq.plugins.admin.config import AdminSettings


def tls_of(settings: AdminSettings, host: str) -> WatchedFiles[ssl.SSLContext] | None:
    """Raises ConfigError for files that do not fit, and for a host that others reach in plain
    text."""
    if not settings.tls_cert:
        if not (settings.insecure or is_loopback(host)):
            raise ConfigError(
                f"admin: host {host} is reached by other machines: set tls_cert and tls_key, or "
                "set insecure = true"
            )
        return None
    return watched_context("admin", settings.tls_cert, settings.tls_key)
