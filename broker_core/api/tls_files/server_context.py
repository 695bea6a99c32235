"""The TLS context of a listener, from the files that its section of the configuration names."""

from __future__ import annotations

import ssl
from typing import Final, Literal

from lakemq.broker_core.api.errors import ConfigError
from lakemq.broker_core.api.tls_files.watched_files import WatchedFiles

ClientCertificate = Literal["none", "optional", "required"]
"""Whether a client may, or must, show a certificate of its own."""
_MODES: Final = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


def server_context(
    section: str,
    tls_cert: str,
    tls_key: str,
    tls_ca: str = "",
    client_certificate: ClientCertificate = "none",
) -> ssl.SSLContext:
    """A context for TLS 1.2 and later. `tls_ca` signs the certificates of clients; it is read where
    they are asked for. Raises ConfigError, naming section, setting and file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(tls_cert, tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"{section}: tls_cert {tls_cert} with tls_key {tls_key}: {error}"
        ) from None
    if client_certificate != "none":
        try:
            context.load_verify_locations(tls_ca)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"{section}: tls_ca {tls_ca}: {error}") from None
    context.verify_mode = _MODES[client_certificate]
    return context


def watched_context(
    section: str,
    tls_cert: str,
    tls_key: str,
    tls_ca: str = "",
    client_certificate: ClientCertificate = "none",
) -> WatchedFiles[ssl.SSLContext]:
    """The same, made again when a file changes: a new one, since an authority can't be taken out of
    a context. Raises ConfigError."""
    files = [tls_cert, tls_key, *([tls_ca] if client_certificate != "none" else [])]
    return WatchedFiles(
        files, lambda: server_context(section, tls_cert, tls_key, tls_ca, client_certificate)
    )
