"""Certificates from the files that the settings name."""

from __future__ import annotations

from pathlib import Path

import grpc

from lakemq.meta_service.api.errors import StartupFailed
from lakemq.meta_service.api.settings import MetaSettings
from lakemq.meta_service.raft.wire.sockets import Pem


def load_pem(settings: MetaSettings) -> Pem | None:
    """None: plain text. Raises StartupFailed."""
    names = {
        "meta.tls_cert": settings.tls_cert,
        "meta.tls_key": settings.tls_key,
        "meta.tls_ca": settings.tls_ca,
    }
    if not any(names.values()):
        return None
    parts = []
    for setting, name in names.items():
        if not name:
            raise StartupFailed(f"{setting} is missing: TLS needs certificate, key and authority")
        try:
            parts.append(Path(name).read_bytes())
        except OSError as error:
            raise StartupFailed(f"{setting}: {name}: {error.strerror}") from error
    certificate, key, authority = parts
    return Pem(certificate, key, authority, settings.tls_cert, settings.tls_key)


def server_credentials(pem: Pem | None) -> grpc.ServerCredentials | None:
    """Clients must show a certificate of the same authority."""
    if pem is None:
        return None
    return grpc.ssl_server_credentials(
        [(pem.key, pem.certificate)], pem.authority, require_client_auth=True
    )


def channel_credentials(pem: Pem | None) -> grpc.ChannelCredentials | None:
    """What this member shows to other members; None: plain text."""
    if pem is None:
        return None
    return grpc.ssl_channel_credentials(pem.authority, pem.key, pem.certificate)
